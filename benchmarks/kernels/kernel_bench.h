// What matmul_bench and cpu_attention_bench share: their flags, the machine that they run on, how calls are timed, what a line
// says of them, and the frame of the report.
#pragma once

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/kernels/machine_bounds.h"
#include "benchmarks/report.h"

namespace quire::bench {

struct KernelFlags {
  std::string isa = {};          // empty: the best
  std::int64_t megabytes = 256;  // larger than the caches
  double seconds = 0.2;          // of each repeat of each line
  CommonFlags common = {};
};
// --isa, --megabytes ("memory of " + what), --seconds, and the common ones; what stands in `flags` is the default.
void add_kernel_flags(CLI::App& app, KernelFlags& flags, const std::string& what);

struct Machine {
  const cpu::KernelTable& kernels;
  int num_threads;
  MachineBounds bounds;
};
// Throws Error(kUnsupported) for kernels that this machine or build does not have.
Machine measure_machine(const KernelFlags& flags);
std::string describe(const Machine& machine);  // a line without its end

// Seconds of one call, in each of --repeat stretches of --seconds.
std::vector<double> time_calls(const std::function<void()>& call, const KernelFlags& flags);

// What a call does at least, and the rate that its operations could have.
struct Work {
  double bytes = 0, operations = 0;
  std::optional<double> peak;
};
// Adds "seconds", "gb_per_s", `rate_key` (operations, in 1e9 a second), "share_of_bound" and "bound" to a row of the report;
// returns the same as text, under figures_title(), with the end of the line.
std::string add_figures(boost::json::object& row, const std::vector<double>& times, const Work& work, const MachineBounds& bounds,
                        const char* rate_key);
std::string figures_title(const char* rate);

// Prints the JSON line, to --json too: what the flags and the machine say, `parameters`, the rows.
void emit_kernel_report(const char* bench, const KernelFlags& flags, const Machine& machine,
                        const boost::json::object& parameters, boost::json::array rows);

}  // namespace quire::bench
