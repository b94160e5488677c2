#include "core/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <string>
#include <string_view>

namespace quire {
namespace {

// spdlog takes every word that it does not know for "off"; a typing error must not silence warnings.
void set_level(spdlog::logger& target, std::string_view name) {
  const spdlog::level::level_enum level = spdlog::level::from_str(std::string(name));
  if (level == spdlog::level::off && name != "off") {
    target.warn("QUIRE_LOG_LEVEL is \"{}\", none of trace, debug, info, warn, error, critical, off; it stays at warn", name);
  } else {
    target.set_level(level);
  }
}

}  // namespace

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    if (auto existing = spdlog::get("quire")) return existing;
    auto created = std::make_shared<spdlog::logger>("quire", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    created->set_pattern("quire [%l] %v");
    created->set_level(spdlog::level::warn);
    if (const char* level = std::getenv("QUIRE_LOG_LEVEL")) set_level(*created, level);
    return created;
  }();
  return *instance;
}

}  // namespace quire
