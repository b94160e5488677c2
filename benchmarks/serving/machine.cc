#include "benchmarks/serving/machine.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <thread>

#include "git_revision.h"  // made by the build

namespace quire::bench {
namespace {

namespace fs = std::filesystem;

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(std::min(colon + 2, line.size()));
  }
  return "unknown";
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  gmtime_r(&now, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &utc)};
}

}  // namespace

Machine this_machine() {
  return {
      .git_revision = QUIRE_GIT_REVISION, .cpu = cpu_model(), .num_cpus = std::thread::hardware_concurrency(), .date = utc_now()};
}

std::uint64_t model_bytes(const std::string& path) {
  std::error_code error;
  if (fs::is_regular_file(path, error)) return fs::file_size(path, error);
  std::uint64_t sum = 0;
  for (fs::directory_iterator it(path, error); !error && it != fs::directory_iterator(); it.increment(error))
    if (it->is_regular_file()) sum += it->file_size();
  return sum;
}

}  // namespace quire::bench
