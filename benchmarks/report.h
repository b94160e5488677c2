// What the benchmarks share: their common flags, the header of a JSON line (program, revision, machine, date; engine and model),
// order statistics, and how a run ends. Every benchmark prints a table for people and, as the last line of its output, one JSON
// object with every parameter; --json FILE writes that line to a file too. A run that fails says why on standard error, prints no
// figure that it did not finish, and ends with status 1; a wrong command line ends with 2.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

namespace quire {
class Engine;
}

namespace quire::bench {

struct CommonFlags {
  std::string json;  // file; empty: none
  int repeats = 3;
  int threads = 0;
};

// --json FILE, --repeat N and --threads N; what stands in `flags` is the default.
void add_common_flags(CLI::App& app, CommonFlags& flags);
// --json alone, for programs that repeat nothing or have no threads.
void add_json_flag(CLI::App& app, std::string& json);

// {"bench", "revision" (git's, at build time), "build", "compiler", "date" (UTC), "cpu", "cores" (that this process may use)}.
boost::json::object report_header(std::string_view bench);
// Adds "model", "isa", "threads", "kv_bytes", "weight_bytes" and the engine's options.
void add_engine(boost::json::object& report, const std::string& model, const Engine& engine);
// Writes the line to the file if one is named, then prints it. Throws std::runtime_error; of what could not be written nothing is
// printed.
void emit(const boost::json::object& report, const std::string& json_file);

// The value below which `share` of the values lie, 0 <= share <= 1, interpolated between neighbours. REQUIRES: values not empty.
double quantile(std::vector<double> values, double share);
double quantile_of_sorted(const std::vector<double>& values, double share);  // of values in ascending order
inline double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }
// {"median", "min", "max"} of repeated measurements. REQUIRES: values not empty.
boost::json::object spread(const std::vector<double>& values);

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// A field of /proc/self/status in bytes: "VmRSS", what of this process is in memory, or "VmHWM", the most that was.
std::int64_t own_memory(std::string_view field);

// Calls `body`, unless the command line is wrong, which `wrong` says how; the exit status.
template <typename Body>
int run_guarded(const char* program, const std::string& wrong, const Body& body) {
  if (!wrong.empty()) {
    fmt::print(stderr, "{}: {}\n", program, wrong);
    return 2;
  }
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", program, error.what());
    return 1;
  }
}
template <typename Body>
int run_guarded(const char* program, const Body& body) {
  return run_guarded(program, {}, body);
}

}  // namespace quire::bench
