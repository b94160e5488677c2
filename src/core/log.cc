#include "core/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>

namespace quire {

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    if (auto existing = spdlog::get("quire")) return existing;
    auto created = std::make_shared<spdlog::logger>("quire", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    created->set_pattern("quire [%l] %v");
    created->set_level(spdlog::level::warn);
    if (const char* level = std::getenv("QUIRE_LOG_LEVEL")) created->set_level(spdlog::level::from_str(level));
    return created;
  }();
  return *instance;
}

}  // namespace quire
