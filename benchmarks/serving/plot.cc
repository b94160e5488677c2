#include "benchmarks/serving/plot.h"

#include <fmt/format.h>
#include <quire/error.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <vector>

namespace quire::bench {
namespace {

void run_script(std::vector<std::string> arguments) {
  const std::filesystem::path script = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "plot.py";
  arguments.insert(arguments.begin(), {"python3", script.string()});
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t child = 0;
  if (const int error = posix_spawnp(&child, "python3", nullptr, nullptr, argv.data(), environ))
    throw Error(ErrorCode::kUnavailable, fmt::format("--plot needs python3: {}", std::strerror(error)));
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw Error(ErrorCode::kUnavailable, fmt::format("{} failed; it needs python3 with matplotlib", script.string()));
}

}  // namespace

void check_plotting() { run_script({"--check"}); }

void plot(const std::string& jsonl, const std::string& folder) { run_script({jsonl, "--out", folder}); }

}  // namespace quire::bench
