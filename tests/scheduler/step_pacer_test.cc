// StepPacer against machines of known cost: a step takes `step` microseconds, and more for each decode row and prompt token.
#include "scheduler/step_pacer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "quire/error.h"
#include "tests/scheduler/simulation.h"

namespace quire::testing {
namespace {

struct Cost {
  std::int64_t step_us, decode_us, prefill_us;
  std::int64_t of(int num_decode, int num_prefill) const { return step_us + num_decode * decode_us + num_prefill * prefill_us; }
};

TEST(StepPacer, FindsWhatFitsInAFewSteps) {
  const Cost cost{.step_us = 4'000, .decode_us = 100, .prefill_us = 250};
  StepPacer pacer(50'000, 16, 512);
  EXPECT_EQ(pacer.prefill_limit(), 32);  // nothing is known
  for (int i = 0; i < 4; ++i) pacer.observe(8, 0, cost.of(8, 0));
  for (int i = 0; i < 4; ++i) {
    const int tokens = pacer.prefill_limit();
    EXPECT_LE(cost.of(8, tokens), 50'000);
    pacer.observe(8, tokens, cost.of(8, tokens));
  }
  // 45,000 us less the 4,800 of the decodes hold 160 tokens.
  EXPECT_EQ(pacer.prefill_limit(), 160);
}

TEST(StepPacer, FollowsAStepThatTookTooLongAtOnceAndComesBackSlowly) {
  StepPacer pacer(20'000, 16, 512);
  for (int i = 0; i < 10; ++i) pacer.observe(1, 100, 10'000);
  const int before = pacer.prefill_limit();
  EXPECT_EQ(before, 176);  // 18,000 us at 100 each, in sixteens
  pacer.observe(1, before, 4 * 100 * before);
  const int after = pacer.prefill_limit();
  EXPECT_LE(after, before / 2);
  pacer.observe(1, after, 100 * after);
  EXPECT_LT(pacer.prefill_limit(), before * 2 / 3);
  for (int i = 0; i < 60; ++i) pacer.observe(1, pacer.prefill_limit(), 100 * pacer.prefill_limit());
  EXPECT_GE(pacer.prefill_limit(), before - 16);
}

TEST(StepPacer, PromptsAdvanceEvenWhereNothingFits) {
  StepPacer pacer(1'000, 16, 512);
  for (int i = 0; i < 5; ++i) pacer.observe(64, 0, 30'000);
  pacer.observe(64, 16, 60'000);
  EXPECT_EQ(pacer.prefill_limit(), 16);
}

// The machine slept through a step of decodes, and from then on no step is without prompts.
TEST(StepPacer, ForgetsASlowStepOfDecodesWherePromptsNeverEnd) {
  const Cost cost{.step_us = 4'000, .decode_us = 100, .prefill_us = 250};
  StepPacer pacer(50'000, 16, 512);
  const auto mixed_steps = [&](int count) {
    for (int i = 0; i < count; ++i) {
      const int tokens = pacer.prefill_limit();
      EXPECT_LE(cost.of(8, tokens), 50'000);
      pacer.observe(8, tokens, cost.of(8, tokens));
    }
  };
  for (int i = 0; i < 4; ++i) pacer.observe(8, 0, cost.of(8, 0));
  mixed_steps(10);
  const int before = pacer.prefill_limit();
  pacer.observe(8, 0, 1'000'000);
  EXPECT_EQ(pacer.prefill_limit(), 16);
  mixed_steps(20);
  EXPECT_GE(pacer.prefill_limit(), before / 2);
}

TEST(StepPacer, GivesTheWholeStepWhereItFits) {
  StepPacer pacer(1'000'000, 16, 500);
  pacer.observe(0, 500, 1'000);
  EXPECT_EQ(pacer.prefill_limit(), 500);
  StepPacer tiny(1'000, 1, 1);
  EXPECT_EQ(tiny.prefill_limit(), 1);
  tiny.observe(0, 1, 0);  // a clock that stood still
  EXPECT_EQ(tiny.prefill_limit(), 1);
  EXPECT_THROW(StepPacer(0, 16, 512), Error);
  EXPECT_THROW(StepPacer(1, 0, 512), Error);
  EXPECT_THROW(StepPacer(1, 16, 8), Error);
}

// The first token of an urgent prompt, in steps, while a long one of lower priority runs beside streams, under the limit.
TEST(StepPacer, ItsLimitGoesToTheHighestPriorityFirst) {
  const SchedulerOptions options{
      .block_size = 256, .num_blocks = 100, .max_batched_tokens = 512, .max_running = 64, .max_context = 4096};
  Simulation simulation(options);
  StepPacer pacer(40'000, 16, 512);
  const Cost cost{.step_us = 5'000, .decode_us = 100, .prefill_us = 1'000};
  const auto step = [&] {
    simulation.prefill_limit = pacer.prefill_limit();
    simulation.step();
    const int num_decode = simulation.plan.num_decode, num_prefill = simulation.plan.num_tokens - num_decode;
    pacer.observe(num_decode, num_prefill, cost.of(num_decode, num_prefill));
    return cost.of(num_decode, num_prefill);
  };
  for (int i = 0; i < 4; ++i) simulation.submit({.prompt = counting(3, 10 * i), .max_tokens = 100});
  for (int i = 0; i < 5; ++i) step();
  simulation.submit({.prompt = counting(1'500, 100), .max_tokens = 5, .priority = 1});
  for (int i = 0; i < 3; ++i) EXPECT_LE(step(), 40'000) << "whatever the blocks hold";
  const SequenceId urgent = simulation.submit({.prompt = counting(48, 2'000), .max_tokens = 5});
  int num_steps = 0;
  for (; simulation.records[urgent].received.empty() && num_steps < 20; ++num_steps) EXPECT_LE(step(), 40'000);
  EXPECT_LE(num_steps, 3);
  simulation.run();
}

// Streams decode while long prompts come in; tokens of a prompt grow dearer along its context. The scheduler is the one that
// serves.
std::vector<std::int64_t> step_times(bool paced) {
  SchedulerOptions options{
      .block_size = 16, .num_blocks = 4000, .max_batched_tokens = 512, .max_running = 64, .max_context = 4096};
  Simulation simulation(options);
  StepPacer pacer(60'000, 16, 512);
  std::mt19937 random(3);
  const auto prompt = [&](int size) { return counting(size, static_cast<TokenId>(random() % 1000)); };
  for (int i = 0; i < 8; ++i) simulation.submit({.prompt = prompt(30), .max_tokens = 400});
  std::vector<std::int64_t> times;  // of steps in which a stream waits for its next token
  for (int s = 0; simulation.scheduler.has_work(); ++s) {
    if (s % 40 == 10 && s < 300) simulation.submit({.prompt = prompt(1'500), .max_tokens = 5});
    std::int64_t elapsed_us = 0;
    simulation.prefill_limit = paced ? pacer.prefill_limit() : Scheduler::kNoLimit;
    simulation.step(0, [&] {
      const StepPlan& plan = simulation.plan;
      elapsed_us = 5'000 + 150 * plan.num_decode + static_cast<std::int64_t>(random() % 500);
      for (const ScheduledSequence& entry : plan.entries) {
        if (entry.num_tokens > 1) elapsed_us += entry.num_tokens * (300 + entry.first_position / 8);
      }
      pacer.observe(plan.num_decode, plan.num_tokens - plan.num_decode, elapsed_us);
      if (plan.num_decode > 0) times.push_back(elapsed_us);
    });
  }
  simulation.check_idle();
  std::sort(times.begin(), times.end());
  return times;
}

TEST(StepPacer, HoldsTheGapBetweenTokensUnderLoad) {
  const std::vector<std::int64_t> paced = step_times(true), free = step_times(false);
  EXPECT_GT(free.back(), 200'000);
  EXPECT_LE(paced.back(), 66'000);  // the first steps of a dearer kind
  EXPECT_LE(paced[paced.size() * 98 / 100], 60'000);
  EXPECT_LE(paced.size(), 3 * free.size());  // and prompts are not starved
}

}  // namespace
}  // namespace quire::testing
