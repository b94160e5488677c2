// What one decode step costs the host: schedule, build_batch and commit over S running sequences, without any model.
// Contexts are uniform between 128 and 2,048 tokens (68 pages of 16 on average); the prefix cache is on, so filled blocks are
// hashed and published on the way. Prints microseconds per step, and one JSON line last.
//
//   scheduler_bench [--steps 400] [--sliding-groups 0] [--json FILE]
#include <fmt/format.h>

#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "benchmarks/command_line.h"
#include "benchmarks/report.h"
#include "engine/batch_builder.h"
#include "scheduler/scheduler.h"

namespace {

using namespace quire;
using bench::quantile;
using Clock = std::chrono::steady_clock;

constexpr int kBlockSize = 16;
constexpr int kMinContext = 128;
constexpr int kMaxContext = 2048;

struct StepTimes {
  std::vector<double> schedule_us;
  std::vector<double> build_us;
  std::vector<double> commit_us;
  std::vector<double> total_us;
};

double microseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}

StepTimes measure(int num_sequences, int num_steps, int num_sliding) {
  std::vector<KvGroupSpec> groups{{.window = 0}};
  groups.resize(1 + static_cast<std::size_t>(num_sliding), {.window = 512});
  const int blocks_per_sequence = (kMaxContext + num_steps) / kBlockSize + 2;
  Scheduler scheduler({.block_size = kBlockSize,
                       .num_blocks = 1 + num_sequences * blocks_per_sequence * (1 + num_sliding),
                       .max_batched_tokens = 8192,
                       .max_running = num_sequences,
                       .max_context = 2 * kMaxContext + num_steps},
                      groups);
  std::mt19937 random(1);
  for (int s = 0; s < num_sequences; ++s) {
    const int length = std::uniform_int_distribution<int>(kMinContext, kMaxContext)(random);
    SequenceSpec spec{.max_tokens = kMaxContext + num_steps};
    for (int i = 0; i < length; ++i) spec.prompt.push_back(static_cast<TokenId>(random() % 50'000));
    scheduler.submit(std::move(spec));
  }

  HostBatch batch;
  std::vector<TokenId> sampled;
  std::vector<SequenceEvent> events;
  StepTimes times;
  while (static_cast<int>(times.total_us.size()) < num_steps) {
    const auto start = Clock::now();
    const StepPlan& plan = scheduler.schedule(0);
    const auto scheduled = Clock::now();
    build_batch(plan, batch);
    const auto built = Clock::now();
    sampled.clear();
    events.clear();
    for (const LogitRow& logit : batch.logits) {
      if (logit.samples) sampled.push_back(static_cast<TokenId>(random() % 50'000));
    }
    const bool is_decode_step = plan.num_decode == num_sequences;
    const auto before_commit = Clock::now();
    scheduler.commit(plan, sampled, events);
    const auto committed = Clock::now();
    if (!is_decode_step) continue;  // prompts are still being computed
    times.schedule_us.push_back(microseconds(start, scheduled));
    times.build_us.push_back(microseconds(scheduled, built));
    times.commit_us.push_back(microseconds(before_commit, committed));
    times.total_us.push_back(times.schedule_us.back() + times.build_us.back() + times.commit_us.back());
  }
  return times;
}

// Numbers of running sequences; each measured alone.
void run(int num_steps, int num_sliding, const std::string& json_file) {
  std::string table =
      fmt::format("host microseconds per decode step, median of {} steps, {} sliding groups\n", num_steps, num_sliding);
  table += fmt::format("{:>10} {:>10} {:>10} {:>10} {:>10} {:>10}\n", "sequences", "schedule", "build", "commit", "total", "p99");
  boost::json::array rows;
  for (const int num_sequences : {1, 4, 16, 64, 256, 1024}) {
    const StepTimes times = measure(num_sequences, num_steps, num_sliding);
    const double schedule_us = quantile(times.schedule_us, 0.5);
    const double build_us = quantile(times.build_us, 0.5);
    const double commit_us = quantile(times.commit_us, 0.5);
    const double total_us = quantile(times.total_us, 0.5);
    const double p99_us = quantile(times.total_us, 0.99);
    table += fmt::format("{:>10} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f}\n", num_sequences, schedule_us, build_us,
                         commit_us, total_us, p99_us);
    rows.push_back(boost::json::object{{"sequences", num_sequences},
                                       {"schedule_us", schedule_us},
                                       {"build_us", build_us},
                                       {"commit_us", commit_us},
                                       {"total_us", total_us},
                                       {"p99_us", p99_us}});
  }
  fmt::print("{}", table);
  boost::json::object report = bench::report_header("scheduler");
  report["steps"] = num_steps;
  report["block_size"] = kBlockSize;
  report["min_context"] = kMinContext;
  report["max_context"] = kMaxContext;
  report["sliding_groups"] = num_sliding;
  report["rows"] = std::move(rows);
  bench::emit(report, json_file);
}

}  // namespace

int main(int argc, char** argv) {
  int num_steps = 400;
  int num_sliding = 0;
  std::string json_file;
  CLI::App app("Host microseconds per decode step, without a model.");
  app.add_option("--steps,--repeat", num_steps, "steps measured for each number of sequences")->check(CLI::Range(1, 1'000'000));
  app.add_option("--sliding-groups", num_sliding, "KV groups with a window beside the full one")->check(CLI::Range(0, 8));
  bench::add_json_flag(app, json_file);
  if (const auto status = bench::parse_flags(app, argc, argv)) return *status;
  return bench::run_guarded("scheduler_bench", [&] { run(num_steps, num_sliding, json_file); });
}
