#include "scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "quire/error.h"
#include "tests/scheduler/simulation.h"

namespace quire::testing {
namespace {

using ::testing::HasSubstr;

SchedulerOptions small_options() {
  return {.block_size = 4, .num_blocks = 33, .max_batched_tokens = 16, .max_running = 8, .max_context = 100};
}

std::vector<std::pair<SequenceId, int>> shape(const StepPlan& plan) {
  std::vector<std::pair<SequenceId, int>> entries;
  for (const ScheduledSequence& entry : plan.entries) entries.emplace_back(entry.sequence->id(), entry.num_tokens);
  return entries;
}
using Shape = std::vector<std::pair<SequenceId, int>>;

// The plan's sequences may be gone after a step, so the shape is taken while it is in flight.
Shape step(Simulation& simulation, std::int64_t now_us = 0) {
  Shape result;
  simulation.step(now_us, [&] { result = shape(simulation.plan); });
  return result;
}

TEST(Scheduler, NamesTheOptionThatIsWrong) {
  const auto message = [](auto change) {
    SchedulerOptions options = small_options();
    std::vector<KvGroupSpec> groups{{0}};
    change(options, groups);
    try {
      Scheduler(options, groups);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(message([](auto& o, auto&) { o.block_size = 0; }), HasSubstr("block_size: 0"));
  EXPECT_THAT(message([](auto& o, auto&) { o.num_blocks = 1; }), HasSubstr("num_blocks: 1"));
  EXPECT_THAT(message([](auto& o, auto&) { o.max_batched_tokens = 0; }), HasSubstr("max_batched_tokens"));
  EXPECT_THAT(message([](auto& o, auto&) { o.max_running = -1; }), HasSubstr("max_running: -1"));
  EXPECT_THAT(message([](auto& o, auto&) { o.max_context = 1; }), HasSubstr("max_context"));
  EXPECT_THAT(message([](auto&, auto& g) { g.clear(); }), HasSubstr("KV groups"));
  EXPECT_THAT(message([](auto&, auto& g) { g[0].window = -1; }), HasSubstr("window"));
  EXPECT_THAT(message([](auto& o, auto& g) { o.num_blocks = 3, g.assign(3, {0}); }), HasSubstr("num_blocks: 3"));
}

TEST(Scheduler, ChunksAPromptAndMixesItWithDecodes) {
  Simulation simulation(small_options());
  simulation.submit({.prompt = counting(3), .max_tokens = 10});
  EXPECT_EQ(step(simulation), (Shape{{1, 3}}));
  simulation.submit({.prompt = counting(40), .max_tokens = 3});
  EXPECT_EQ(step(simulation), (Shape{{1, 1}, {2, 15}}));
  EXPECT_EQ(step(simulation), (Shape{{1, 1}, {2, 15}}));
  EXPECT_EQ(simulation.plan.num_decode, 1);
  EXPECT_EQ(step(simulation), (Shape{{1, 1}, {2, 10}}));
  EXPECT_EQ(step(simulation), (Shape{{1, 1}, {2, 1}}));
  simulation.run();
  EXPECT_EQ(simulation.scheduler.stats().prefill_tokens, 43);
  EXPECT_EQ(simulation.scheduler.stats().generated_tokens, 13);
}

TEST(Scheduler, DecodesComeBeforePromptsWherePrefillIsLimited) {
  Simulation simulation(small_options());
  simulation.prefill_limit = 4;
  simulation.submit({.prompt = counting(20), .max_tokens = 10});  // alone: no stream to hold up
  EXPECT_EQ(step(simulation), (Shape{{1, 16}}));
  simulation.submit({.prompt = counting(14, 30), .max_tokens = 10});
  EXPECT_EQ(step(simulation), (Shape{{1, 4}, {2, 12}}));
  simulation.submit({.prompt = counting(9, 60), .max_tokens = 10});
  EXPECT_EQ(step(simulation), (Shape{{1, 1}, {2, 2}, {3, 2}}));  // the limit is for all prompts together
  EXPECT_EQ(step(simulation), (Shape{{1, 1}, {2, 1}, {3, 4}}));
  simulation.submit({.prompt = counting(6, 80), .max_tokens = 3, .priority = -1});  // before all other prompts
  EXPECT_EQ(step(simulation), (Shape{{1, 1}, {2, 1}, {4, 4}}));
  EXPECT_EQ(step(simulation), (Shape{{1, 1}, {2, 1}, {4, 2}, {3, 2}}));
  EXPECT_EQ(step(simulation), (Shape{{4, 1}, {1, 1}, {2, 1}, {3, 1}}));
  simulation.run();
}

// A prompt that came later and matters more does not wait for the end of one that runs.
TEST(Scheduler, WaitingPromptsOfHigherPriorityGoBeforeRunningOnes) {
  Simulation simulation(small_options());
  simulation.submit({.prompt = counting(60), .max_tokens = 2, .priority = 5});
  EXPECT_EQ(step(simulation), (Shape{{1, 16}}));
  simulation.submit({.prompt = counting(20, 70), .max_tokens = 2, .priority = 3});
  simulation.submit({.prompt = counting(9, 200), .max_tokens = 2, .priority = 5});  // waits for its turn
  simulation.submit({.prompt = counting(5, 90), .max_tokens = 2, .priority = 1});
  EXPECT_EQ(step(simulation), (Shape{{4, 5}, {2, 11}}));
  EXPECT_EQ(step(simulation), (Shape{{4, 1}, {2, 9}, {1, 6}}));
  EXPECT_EQ(step(simulation), (Shape{{2, 1}, {1, 15}}));
  EXPECT_EQ(step(simulation), (Shape{{1, 16}}));
  EXPECT_EQ(step(simulation), (Shape{{1, 7}, {3, 9}}));
  simulation.run();
}

// Who waits and does not fit is asked once, not again before each prompt that runs: nothing is released within a step.
TEST(Scheduler, AsksOnceAStepWhetherTheNextFits) {
  Simulation simulation(small_options());
  simulation.submit({.prompt = counting(20), .max_tokens = 2, .priority = 3});
  EXPECT_EQ(step(simulation), (Shape{{1, 16}}));
  simulation.submit({.prompt = counting(20, 100), .max_tokens = 2, .priority = 2});
  EXPECT_EQ(step(simulation), (Shape{{2, 16}}));
  simulation.submit({.prompt = counting(99, 200), .priority = 1});  // 25 blocks, of which 24 are left
  const std::int64_t before = simulation.scheduler.stats().num_look_ups;
  EXPECT_EQ(step(simulation), (Shape{{2, 4}, {1, 4}}));
  EXPECT_EQ(simulation.scheduler.stats().num_look_ups - before, 1);
  simulation.run();
}

// With a window a shorter chunk needs fewer blocks: 14 tokens four of the three that are left, 12 tokens three.
TEST(Scheduler, AsksAgainWhereAShorterChunkMayFit) {
  SchedulerOptions options = small_options();
  options.max_batched_tokens = 14;
  options.num_blocks = 1 + 6;
  Simulation simulation(options, {{.window = 8}});
  simulation.submit({.prompt = counting(16), .max_tokens = 2, .priority = 2});
  EXPECT_EQ(step(simulation), (Shape{{1, 14}}));
  simulation.submit({.prompt = counting(40, 100), .max_tokens = 2, .priority = 1});
  EXPECT_EQ(step(simulation), (Shape{{1, 2}, {2, 12}}));
  simulation.run();
}

// A stream gets its token in every step, whatever prompts of higher priority run before it or keep coming.
TEST(Scheduler, AStreamDoesNotStopForPrompts) {
  SchedulerOptions options = small_options();
  options.num_blocks = 400;
  options.max_context = 1'000;
  for (const bool with_prompt : {false, true}) {
    Simulation simulation(options);
    const SequenceId stream = simulation.submit({.prompt = counting(3), .max_tokens = 200, .priority = 5});
    simulation.step();
    if (with_prompt) {
      simulation.submit({.prompt = counting(160, 10), .max_tokens = 1, .priority = 4});
      simulation.step();
    }
    const std::size_t before = simulation.records[stream].received.size();
    for (int i = 0; i < 50; ++i) {
      simulation.submit({.prompt = counting(16, 16 * i % 900), .max_tokens = 1, .priority = 0});
      simulation.step();
    }
    EXPECT_EQ(simulation.records[stream].received.size() - before, 50u) << with_prompt;
    simulation.run();
  }
}

// One that does not fit holds nobody up who runs, and is overtaken by nobody who waits.
TEST(Scheduler, WaitingPromptsThatDoNotFitLeaveTheBudgetToRunningOnes) {
  SchedulerOptions options = small_options();
  options.num_blocks = 17;
  Simulation simulation(options);
  simulation.submit({.prompt = counting(40), .max_tokens = 2, .priority = 5});
  EXPECT_EQ(step(simulation), (Shape{{1, 16}}));
  simulation.submit({.prompt = counting(50, 50), .max_tokens = 2, .priority = 1});
  simulation.submit({.prompt = counting(3, 90), .max_tokens = 2, .priority = 2});
  EXPECT_EQ(step(simulation), (Shape{{1, 16}}));
  EXPECT_EQ(step(simulation), (Shape{{1, 8}}));
  simulation.run();
  EXPECT_EQ(simulation.scheduler.stats().num_preemptions, 0);
}

// What was admitted in the middle of a step is no victim of those behind it.
TEST(Scheduler, APromptThatCannotGrowBehindAnAdmittedOneGivesWay) {
  SchedulerOptions options = small_options();
  options.num_blocks = 9;
  Simulation simulation(options);
  simulation.submit({.prompt = counting(24), .max_tokens = 2, .priority = 5});
  EXPECT_EQ(step(simulation), (Shape{{1, 16}}));
  simulation.submit({.prompt = counting(13, 50), .max_tokens = 2, .priority = 1});
  EXPECT_EQ(step(simulation), (Shape{{2, 13}}));
  EXPECT_EQ(simulation.scheduler.stats().num_preemptions, 1);
  EXPECT_EQ(step(simulation).front(), (std::pair<SequenceId, int>{2, 1}));
  simulation.run();
}

TEST(Scheduler, ALimitLeavesEveryDecodeItsToken) {
  SchedulerOptions options = small_options();
  options.max_batched_tokens = 4;
  Simulation simulation(options);
  for (int i = 0; i < 3; ++i) simulation.submit({.prompt = counting(1, 20 + i), .max_tokens = 20});
  simulation.submit({.prompt = counting(9), .max_tokens = 3, .priority = -1});
  const Shape first = {{4, 4}};
  EXPECT_EQ(step(simulation), first);  // nobody decodes yet
  EXPECT_EQ(step(simulation), first);
  simulation.prefill_limit = 1000;
  EXPECT_EQ(step(simulation), (Shape{{4, 1}, {1, 1}, {2, 1}, {3, 1}}));
  simulation.submit({.prompt = counting(7, 40), .max_tokens = 3, .priority = -2});
  simulation.run();
}

TEST(Scheduler, EventsCarryUsageAndReasons) {
  Simulation simulation(small_options());
  const SequenceId id = simulation.submit({.prompt = counting(5), .max_tokens = 2});
  simulation.step();
  ASSERT_EQ(simulation.events.size(), 1u);
  EXPECT_EQ(simulation.events[0].id, id);
  EXPECT_EQ(simulation.events[0].finish_reason, FinishReason::kNone);
  EXPECT_EQ(simulation.events[0].prompt_tokens, 5);
  EXPECT_EQ(simulation.events[0].completion_tokens, 1);
  simulation.step();
  EXPECT_EQ(simulation.events[0].finish_reason, FinishReason::kLength);
  EXPECT_GE(simulation.events[0].token, 0);
  EXPECT_FALSE(simulation.scheduler.has_work());
}

TEST(Scheduler, StopTokensMayComeInAnyOrder) {
  Simulation simulation(small_options());
  simulation.alter = [](const Record& record, TokenId) { return static_cast<TokenId>(record.received.size()); };
  SequenceSpec spec{.prompt = counting(5), .max_tokens = 50, .stop_token_ids = {9, 3, 7}};
  const SequenceId id = simulation.submit(spec);
  while (simulation.scheduler.has_work()) simulation.step();
  EXPECT_EQ(simulation.records[id].received, (std::vector<TokenId>{0, 1, 2, 3}));
  EXPECT_EQ(simulation.records[id].finish_reason, FinishReason::kStop);
}

TEST(Scheduler, FailedSamplingEndsTheSequenceAndPublishesNothing) {
  Simulation simulation(small_options());
  simulation.alter = [](const Record&, TokenId) { return -1; };
  const SequenceId id = simulation.submit({.prompt = counting(8), .max_tokens = 5});
  simulation.step();
  EXPECT_EQ(simulation.records[id].finish_reason, FinishReason::kError);
  EXPECT_EQ(simulation.scheduler.stats().cached_blocks, 0);
  EXPECT_FALSE(simulation.scheduler.has_work());
}

TEST(Scheduler, DeadlineEndsRunningAndWaiting) {
  SchedulerOptions options = small_options();
  options.max_running = 1;
  Simulation simulation(options);
  const SequenceId running = simulation.submit({.prompt = counting(4), .max_tokens = 50, .deadline_us = 100});
  const SequenceId waiting = simulation.submit({.prompt = counting(4), .max_tokens = 50, .deadline_us = 50});
  const SequenceId other = simulation.submit({.prompt = counting(4), .max_tokens = 2});
  simulation.step(49);
  EXPECT_EQ(simulation.records[waiting].finish_reason, FinishReason::kNone);
  simulation.step(50);
  EXPECT_EQ(simulation.records[waiting].finish_reason, FinishReason::kDeadline);
  simulation.step(99);
  EXPECT_EQ(simulation.records[running].finish_reason, FinishReason::kNone);
  simulation.step(100);
  EXPECT_EQ(simulation.records[running].finish_reason, FinishReason::kDeadline);
  simulation.run();
  EXPECT_EQ(simulation.records[other].finish_reason, FinishReason::kLength);
}

TEST(Scheduler, FinishWhileInFlightKeepsTheBlocksUntilCommit) {
  Simulation simulation(small_options());
  const SequenceId id = simulation.submit({.prompt = counting(8), .max_tokens = 5});
  simulation.step(0, [&] {
    EXPECT_TRUE(simulation.scheduler.finish(id, FinishReason::kCancelled));
    EXPECT_FALSE(simulation.scheduler.finish(id, FinishReason::kCancelled));
    EXPECT_EQ(simulation.scheduler.stats().held_blocks, 2);
    EXPECT_NE(simulation.scheduler.find(id), nullptr);
  });
  ASSERT_EQ(simulation.events.size(), 1u);
  EXPECT_EQ(simulation.events[0].token, -1);
  EXPECT_EQ(simulation.events[0].finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(simulation.scheduler.stats().free_blocks, 32);  // nothing was published
  EXPECT_EQ(simulation.scheduler.find(id), nullptr);
}

TEST(Scheduler, FinishOfAWaitingSequenceIsDeliveredByTheNextCommit) {
  Simulation simulation(small_options());
  const SequenceId id = simulation.submit({.prompt = counting(8), .max_tokens = 5});
  EXPECT_TRUE(simulation.scheduler.finish(id, FinishReason::kCancelled));
  EXPECT_FALSE(simulation.scheduler.finish(id, FinishReason::kCancelled));
  EXPECT_FALSE(simulation.scheduler.finish(77, FinishReason::kCancelled));
  EXPECT_TRUE(simulation.scheduler.has_work());
  simulation.step();
  EXPECT_EQ(simulation.plan.num_tokens, 0);
  EXPECT_EQ(simulation.records[id].finish_reason, FinishReason::kCancelled);
  EXPECT_FALSE(simulation.scheduler.has_work());
}

TEST(Scheduler, MisuseIsReportedNotExecuted) {
  Scheduler scheduler(small_options(), {{0}});
  scheduler.submit({.prompt = counting(4)});
  const StepPlan& plan = scheduler.schedule(0);
  EXPECT_THROW(scheduler.schedule(0), Error);
  std::vector<SequenceEvent> events;
  EXPECT_THROW(scheduler.commit(plan, {}, events), Error);  // one token is missing
  EXPECT_THROW(scheduler.commit(StepPlan{}, {}, events), Error);
  const std::vector<TokenId> sampled{1};
  scheduler.commit(plan, sampled, events);
  EXPECT_THROW(scheduler.commit(plan, sampled, events), Error);
}

TEST(Scheduler, SaltsAndOptOutDoNotShare) {
  Simulation simulation(small_options());
  const auto cached = [&](const std::string& salt, bool use_prefix_cache) {
    const SequenceId id =
        simulation.submit({.prompt = counting(13), .max_tokens = 1, .salt = salt, .use_prefix_cache = use_prefix_cache});
    simulation.run();
    return simulation.records[id].cached_tokens;
  };
  EXPECT_EQ(cached("a", true), 0);
  EXPECT_EQ(cached("a", true), 12);
  EXPECT_EQ(cached("b", true), 0);
  EXPECT_EQ(cached("b", false), 0);
  EXPECT_EQ(cached("", true), 0);
  EXPECT_EQ(cached("b", true), 12);
  EXPECT_EQ(simulation.scheduler.stats().cached_tokens, 24);
}

TEST(Scheduler, SiblingsComputeThePromptOnce) {
  for (const bool prefix_cache : {true, false}) {
    for (const int prompt : {1, 4, 5, 7, 8, 20}) {
      SchedulerOptions options = small_options();
      options.prefix_cache = prefix_cache;
      Simulation simulation(options);
      const SequenceId first = simulation.submit({.prompt = counting(prompt), .max_tokens = 6, .num_choices = 4});
      simulation.run();
      EXPECT_EQ(simulation.records[first].num_computed, prompt + 5);
      for (SequenceId id = first + 1; id < first + 4; ++id) {
        EXPECT_EQ(simulation.records[id].num_computed, 1 + 5) << prompt;  // the last prompt token, for its own logits
        EXPECT_EQ(simulation.records[id].cached_tokens, 0);
      }
    }
  }
}

TEST(Scheduler, SiblingsCopyOnlyAPartialBlock) {
  Simulation simulation(small_options());
  simulation.submit({.prompt = counting(7), .max_tokens = 4, .num_choices = 3});
  simulation.step();
  simulation.step();
  EXPECT_EQ(simulation.plan.copies.size(), 2u);  // positions 4 and 5 of the second block, before position 6 is written
  EXPECT_EQ(simulation.plan.entries.size(), 3u);
  EXPECT_EQ(simulation.scheduler.stats().held_blocks, 1 + 3);
  EXPECT_EQ(simulation.scheduler.stats().held_token_slots, 16);
  EXPECT_EQ(simulation.scheduler.stats().written_token_slots, 4 + 4 + 3 + 3);
  simulation.run();

  Simulation exact(small_options());
  exact.submit({.prompt = counting(5), .max_tokens = 4, .num_choices = 3});
  exact.step();
  exact.step();
  EXPECT_TRUE(exact.plan.copies.empty());  // position 4 is the first of its block
  exact.run();
}

TEST(Scheduler, AnotherSiblingTakesOverWhenTheFirstIsCancelled) {
  Simulation simulation(small_options());
  const SequenceId first = simulation.submit({.prompt = counting(40), .max_tokens = 3, .num_choices = 3});
  simulation.step();
  simulation.step(0, [&] { simulation.scheduler.finish(first, FinishReason::kCancelled); });
  EXPECT_EQ(step(simulation), (Shape{{first + 1, 16}}));
  simulation.run();
}

TEST(Scheduler, WaitingSiblingsDoNotHoldUpOthers) {
  Simulation simulation(small_options());
  simulation.submit({.prompt = counting(30), .max_tokens = 3, .num_choices = 3});
  simulation.step();
  simulation.submit({.prompt = counting(4), .max_tokens = 3});
  EXPECT_EQ(step(simulation), (Shape{{1, 14}, {4, 2}}));
  simulation.run();
}

TEST(Scheduler, SlidingGroupsGiveUpBlocksAndStillHit) {
  SchedulerOptions options = small_options();
  options.max_batched_tokens = 8;
  Simulation simulation(options, {{0}, {6}, {6}});
  const SequenceId id = simulation.submit({.prompt = counting(40), .max_tokens = 10});
  int most_held = 0;
  while (simulation.scheduler.has_work()) {
    simulation.step();
    most_held = std::max(most_held, static_cast<int>(simulation.scheduler.stats().held_blocks));
  }
  EXPECT_LE(most_held, 13 + 2 * 4);
  EXPECT_EQ(simulation.records[id].num_computed, 49);
  const SequenceId again = simulation.submit({.prompt = counting(40), .max_tokens = 10});
  simulation.run();
  EXPECT_EQ(simulation.records[again].cached_tokens, 36);
}

TEST(Scheduler, PreemptedSequenceResumesFromItsOwnBlocks) {
  SchedulerOptions options = small_options();
  options.num_blocks = 1 + 8;
  Simulation simulation(options);
  const SequenceId first = simulation.submit({.prompt = counting(10, 0), .max_tokens = 16});
  const SequenceId second = simulation.submit({.prompt = counting(6, 50), .max_tokens = 16});
  simulation.run();
  EXPECT_GT(simulation.scheduler.stats().num_preemptions, 0);
  EXPECT_EQ(simulation.records[first].num_computed, 25);  // never a victim
  EXPECT_EQ(simulation.records[second].cached_tokens, 0);
}

TEST(Scheduler, APromptIsAdmittedOnlyWhenAllOfItFits) {
  SchedulerOptions options = small_options();
  options.num_blocks = 1 + 10;
  Simulation simulation(options);
  simulation.submit({.prompt = counting(16), .max_tokens = 9});
  const SequenceId late = simulation.submit({.prompt = counting(28, 50), .max_tokens = 2});  // 7 blocks; a chunk of it would fit
  simulation.run();
  EXPECT_EQ(simulation.scheduler.stats().num_preemptions, 0);
  EXPECT_EQ(simulation.records[late].num_computed, 29);
}

TEST(Scheduler, RunsByPriorityThenArrival) {
  SchedulerOptions options = small_options();
  options.max_batched_tokens = 4;
  Simulation simulation(options);
  simulation.submit({.prompt = counting(4, 0), .max_tokens = 2, .priority = 1});
  simulation.submit({.prompt = counting(4, 10), .max_tokens = 2, .priority = 0});
  simulation.submit({.prompt = counting(4, 20), .max_tokens = 2, .priority = 1});
  simulation.submit({.prompt = counting(4, 30), .max_tokens = 2, .priority = -1});
  EXPECT_EQ(step(simulation), (Shape{{4, 4}}));
  EXPECT_EQ(step(simulation), (Shape{{4, 1}, {2, 3}}));
  EXPECT_EQ(step(simulation), (Shape{{2, 1}, {1, 3}}));
  simulation.run();
}

}  // namespace
}  // namespace quire::testing
