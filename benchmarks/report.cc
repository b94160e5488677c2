#include "benchmarks/report.h"

#include <quire/engine.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "benchmarks/revision.h"  // made by the build: kRevision, kBuildType

namespace quire::bench {
namespace {

namespace json = boost::json;

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

int usable_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 0;
}

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  return std::string(text, std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts));
}

const char* to_string(KvType type) {
  constexpr const char* kNames[] = {"auto", "f16", "bf16", "f32"};
  return kNames[static_cast<std::size_t>(type)];
}

std::string folder_exists(const std::string& file) {
  const std::filesystem::path folder = std::filesystem::path(file).parent_path();
  return folder.empty() || std::filesystem::is_directory(folder) ? "" : "there is no folder " + folder.string();
}

}  // namespace

void add_json_flag(CLI::App& app, std::string& json) {
  app.add_option("--json", json, "also write the JSON line to this file")->check(folder_exists);
}

void add_common_flags(CLI::App& app, CommonFlags& flags) {
  add_json_flag(app, flags.json);
  app.add_option("--repeat,--repeats", flags.repeats, "measurements of which the median is taken")
      ->capture_default_str()
      ->check(CLI::Range(1, 10'000));
  app.add_option("--threads", flags.threads, "CPU threads; 0: the cores this process may use")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
}

json::object report_header(std::string_view bench) {
  return {{"bench", bench},    {"revision", kRevision}, {"build", kBuildType},    {"compiler", __VERSION__},
          {"date", utc_now()}, {"cpu", cpu_name()},     {"cores", usable_cores()}};
}

void add_engine(json::object& report, const std::string& model, const Engine& engine) {
  const EngineOptions& options = engine.options();
  const EngineStats stats = engine.stats();
  report["model"] = model;
  report["isa"] = stats.cpu_isa;
  report["weight_bytes"] = stats.weight_bytes;
  report["kv_bytes"] = stats.kv_bytes;
  report["device"] = quire::to_string(options.device);
  report["threads"] = options.num_threads;
  report["kv_type"] = to_string(options.kv_type);
  report["block_size"] = options.block_size;
  report["num_blocks"] = options.num_blocks;
  report["max_context"] = options.max_context;
  report["max_batched_tokens"] = options.max_batched_tokens;
  report["max_running"] = options.max_running;
  report["prefix_cache"] = options.prefix_cache;
  report["deterministic"] = options.deterministic;
}

void emit(const json::object& report, const std::string& json_file) {
  const std::string line = json::serialize(report);
  if (!json_file.empty()) {
    std::ofstream file(json_file);
    file << line << '\n';
    file.close();
    if (!file) throw std::runtime_error(fmt::format("cannot write {}", json_file));
  }
  fmt::print("{}\n", line);
  if (std::fflush(stdout) != 0) throw std::runtime_error("cannot write to the standard output");
}

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return quantile_of_sorted(values, share);
}

double quantile_of_sorted(const std::vector<double>& values, double share) {
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return std::lerp(values[below], values[above], place - static_cast<double>(below));
}

json::object spread(const std::vector<double>& values) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return {{"median", median(values)}, {"min", *least}, {"max", *most}};
}

std::int64_t own_memory(std::string_view field) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(field) && line[field.size()] == ':') return std::stoll(line.substr(field.size() + 1)) * 1024;
  }
  throw std::runtime_error(fmt::format("/proc/self/status names no {}", field));
}

}  // namespace quire::bench
