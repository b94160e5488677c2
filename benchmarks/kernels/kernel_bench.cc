#include "benchmarks/kernels/kernel_bench.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "core/parallel.h"

namespace quire::bench {

namespace json = boost::json;
using Clock = std::chrono::steady_clock;

void add_kernel_flags(CLI::App& app, KernelFlags& flags, const std::string& what) {
  app.add_option("--isa", flags.isa, "kernels to measure, as portable, avx2, avx512 or amx; by default the best");
  app.add_option("--megabytes", flags.megabytes, "memory of " + what + ", and that the bandwidth is measured on")
      ->capture_default_str()
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--seconds", flags.seconds, "of each repeat of each line")
      ->capture_default_str()
      ->check(CLI::Range(1e-4, 3600.0));
  add_common_flags(app, flags.common);
}

Machine measure_machine(const KernelFlags& flags) {
  const cpu::KernelTable& kernels = kernels_named(flags.isa);
  const int threads = flags.common.threads > 0 ? flags.common.threads : ThreadPool::default_num_threads();
  return {kernels, threads, measure_bounds(kernels.isa, threads, flags.megabytes * 1'000'000)};
}

std::string describe(const Machine& machine) {
  const auto giga = [](std::optional<double> rate) { return rate ? fmt::format("{:.0f}", *rate * 1e-9) : std::string("?"); };
  const MachineBounds& bounds = machine.bounds;
  return fmt::format("{} kernels, {} threads; bounds: read {:.1f} GB/s, integers {} GOP/s, floats {} GFLOP/s",
                     machine.kernels.isa, machine.num_threads, bounds.bytes_per_s * 1e-9, giga(bounds.integer_ops_per_s),
                     giga(bounds.float_ops_per_s));
}

std::vector<double> time_calls(const std::function<void()>& call, const KernelFlags& flags) {
  std::vector<double> times;
  for (int i = 0; i < flags.common.repeats; ++i) {
    const Clock::time_point start = Clock::now();
    std::int64_t calls = 0;
    double elapsed = 0.0;
    for (; elapsed < flags.seconds; elapsed = seconds_since(start)) {
      call();
      ++calls;
    }
    times.push_back(elapsed / static_cast<double>(calls));
  }
  return times;
}

std::string figures_title(const char* rate) {
  return fmt::format("{:>12} {:>8} {:>9}  {}\n", "us", "GB/s", rate, "share of the bound");
}

std::string add_figures(json::object& row, const std::vector<double>& times, const Work& work, const MachineBounds& bounds,
                        const char* rate_key) {
  const double seconds = median(times), bytes_rate = work.bytes / seconds * 1e-9, rate = work.operations / seconds * 1e-9;
  const Share share = share_of_bound(work.bytes, work.operations, seconds, bounds.bytes_per_s, work.peak);
  row["seconds"] = spread(times);
  row["gb_per_s"] = bytes_rate;
  row[rate_key] = rate;
  row["share_of_bound"] = share.share;
  row["bound"] = share.bound;
  return fmt::format("{:>12.1f} {:>8.2f} {:>9.1f}  {:.0f} % of {}\n", seconds * 1e6, bytes_rate, rate, 100.0 * share.share,
                     share.bound);
}

void emit_kernel_report(const char* bench, const KernelFlags& flags, const Machine& machine, const json::object& parameters,
                        json::array rows) {
  json::object report = report_header(bench);
  report["isa"] = machine.kernels.isa;
  report["threads"] = machine.num_threads;
  report["megabytes"] = flags.megabytes;
  report["seconds"] = flags.seconds;
  report["repeats"] = flags.common.repeats;
  for (const auto& [key, value] : parameters) report[key] = value;
  add_bounds(report, machine.bounds);
  report["rows"] = std::move(rows);
  emit(report, flags.common.json);
}

}  // namespace quire::bench
