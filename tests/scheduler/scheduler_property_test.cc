// Random work on random machines: whatever arrives, and whatever is cancelled or fails, each sequence gets the tokens it gets
// alone, every invariant holds after every step, and all blocks come back.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/scheduler/simulation.h"

namespace quire::testing {
namespace {

struct Machine {
  SchedulerOptions options;
  std::vector<KvGroupSpec> groups;
  int key_bits = 64;
  int prefill_limit = Scheduler::kNoLimit;
};

Machine any_machine() {
  Machine machine;
  const int block_size = *rc::gen::element(1, 2, 4, 8);
  const int window = *rc::gen::inRange(1, 20);
  machine.groups = *rc::gen::element(std::vector<KvGroupSpec>{{0}}, std::vector<KvGroupSpec>{{0}, {window}},
                                     std::vector<KvGroupSpec>{{window}, {0}, {window}, {5}}, std::vector<KvGroupSpec>{{window}});
  const int num_groups = static_cast<int>(machine.groups.size());
  machine.options = {.block_size = block_size,
                     .num_blocks = 1 + num_groups * 3 + *rc::gen::inRange(0, 20 * num_groups),
                     .max_batched_tokens = *rc::gen::inRange(1, 25),
                     .max_running = *rc::gen::inRange(1, 8),
                     .max_context = *rc::gen::inRange(10, 60),
                     .prefix_cache = *rc::gen::inRange(0, 4) > 0};
  machine.key_bits = *rc::gen::element(63, 2);
  machine.prefill_limit = *rc::gen::element(Scheduler::kNoLimit, 1, 3, 9);
  return machine;
}

class Workload {
 public:
  Workload(const Machine& machine, std::uint32_t seed) : simulation(machine.options, machine.groups), random_(seed) {
    simulation.scheduler.allocator_for_test().truncate_keys(machine.key_bits);
    simulation.scheduler.allocator_for_test().permute(seed);
    simulation.prefill_limit = machine.prefill_limit;
  }

  Simulation simulation;
  int num_steps = 0;

  int below(int n) { return static_cast<int>(random_() % static_cast<std::uint32_t>(n)); }
  bool one_in(int n) { return below(n) == 0; }

  // Prompts are prefixes of a few base texts with a short tail, so that they often share blocks.
  void submit() {
    const Scheduler& scheduler = simulation.scheduler;
    const int longest = std::min(scheduler.options().max_context - 1, scheduler.max_pool_tokens());
    const int length = 1 + below(longest);
    const int base = below(3);
    SequenceSpec spec;
    for (int i = 0; i < length; ++i) {
      spec.prompt.push_back(i + 4 > length && one_in(2) ? below(4) : (i * (base + 3) / 2) % Simulation::kVocabulary);
    }
    spec.max_tokens = one_in(10) ? 1 << 30 : 1 + below(30);
    if (one_in(3)) spec.stop_token_ids = {4};
    if (one_in(3)) spec.priority = below(3);
    if (one_in(4)) spec.salt = "tenant";
    if (one_in(6)) spec.deadline_us = num_steps + below(40);
    spec.use_prefix_cache = !one_in(6);
    spec.prompt_logprobs = one_in(8);
    spec.num_choices = one_in(3) ? 1 + below(5) : 1;
    simulation.submit(spec);
    num_total_ += spec.num_choices * (length + std::min(spec.max_tokens, scheduler.options().max_context - length));
  }

  void cancel_any() {
    const auto& records = simulation.records;
    if (records.empty()) return;
    const auto chosen = std::next(records.begin(), below(static_cast<int>(records.size())));
    const bool was_alive = chosen->second.finish_reason == FinishReason::kNone &&
                           simulation.scheduler.find(chosen->first) != nullptr &&
                           simulation.scheduler.find(chosen->first)->finish_reason() == FinishReason::kNone;
    require(simulation.scheduler.finish(chosen->first, FinishReason::kCancelled) == was_alive, "finish() is wrong");
  }

  void step() {
    simulation.step(num_steps++, [&] {
      while (one_in(15)) cancel_any();
    });
  }

  // After the last arrival the first running sequence advances in every step, so the number of steps is bounded.
  void finish() {
    for (int i = 0; simulation.scheduler.has_work(); ++i) {
      require(i <= 2 * num_total_ + 10, "no progress");
      simulation.step(num_steps++);
    }
    simulation.check_idle();
  }

 private:
  std::mt19937 random_;
  int num_total_ = 0;  // tokens of all sequences, prompt and answer
};

// One generated machine is tried with that many workloads.
constexpr std::uint32_t kNumSeeds = 10;

RC_GTEST_PROP(SchedulerProperty, EverySequenceGetsTheTokensItGetsAlone, ()) {
  const Machine machine = any_machine();
  const int num_requests = *rc::gen::inRange(1, 25);
  const auto first_seed = *rc::gen::inRange<std::uint32_t>(0, 1u << 30);
  for (std::uint32_t seed = first_seed; seed < first_seed + kNumSeeds; ++seed) {
    Workload workload(machine, seed);
    for (int i = 0; i < num_requests; ++i) {
      workload.submit();
      while (!workload.one_in(3)) workload.step();
      if (workload.one_in(8)) workload.cancel_any();
    }
    workload.finish();
  }
}

// The n-th allocation fails, for every n, at any moment: nothing leaks, nothing is half done, all still finish with their tokens.
RC_GTEST_PROP(SchedulerProperty, AnyAllocationMayFail, ()) {
  const Machine machine = any_machine();
  const auto first_seed = *rc::gen::inRange<std::uint32_t>(0, 1u << 30);
  for (std::uint32_t seed = first_seed; seed < first_seed + kNumSeeds; ++seed) {
    Workload workload(machine, seed);
    BlockAllocator& allocator = workload.simulation.scheduler.allocator_for_test();
    workload.simulation.allow_empty_plan = true;
    for (int i = 0; i < 8; ++i) {
      workload.submit();
      for (int nth = 1; nth <= 10; ++nth) {
        allocator.fail_allocation(nth);
        workload.step();
      }
    }
    allocator.fail_allocation(0);
    workload.simulation.allow_empty_plan = false;
    workload.finish();
  }
}

// A row without a token: its sequence ends with kError and disturbs nobody.
RC_GTEST_PROP(SchedulerProperty, SamplingMayFail, ()) {
  const Machine machine = any_machine();
  const auto first_seed = *rc::gen::inRange<std::uint32_t>(0, 1u << 30);
  for (std::uint32_t seed = first_seed; seed < first_seed + kNumSeeds; ++seed) {
    Workload workload(machine, seed);
    workload.simulation.alter = [](const Record& record, TokenId token) { return record.choice == 1 && token == 3 ? -1 : token; };
    for (int i = 0; i < 8; ++i) {
      workload.submit();
      workload.step();
    }
    workload.finish();
  }
}

}  // namespace
}  // namespace quire::testing
