// Faults that users of other engines reported, replayed against blocks, page tables and scheduler. The number
// names the case.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "quire/error.h"
#include "tests/scheduler/simulation.h"

namespace quire::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kBlock = 4;

SchedulerOptions options_of(int num_usable_blocks) {
  return {
      .block_size = kBlock, .num_blocks = 1 + num_usable_blocks, .max_batched_tokens = 16, .max_running = 64, .max_context = 400};
}

std::vector<TokenId> counting(int n, TokenId first = 0) {
  std::vector<TokenId> tokens(static_cast<std::size_t>(n));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::string refusal(Scheduler& scheduler, const SequenceSpec& spec) {
  try {
    scheduler.submit(spec);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "accepted";
}

TEST(PeerBugs, B008_TruncatedHashChangesNoToken) {
  for (const int key_bits : {0, 1, 8}) {
    Simulation simulation(options_of(40));
    simulation.scheduler.allocator_for_test().truncate_keys(key_bits);
    for (int i = 0; i < 60; ++i) {
      SequenceSpec spec{.prompt = counting(9 + i % 7, i % 5), .max_tokens = 12};
      if (i % 3 == 0) spec.salt = "other";
      simulation.submit(spec);
      simulation.step();
    }
    simulation.run();  // compares every token with the sequence alone
    EXPECT_GT(simulation.scheduler.stats().cached_tokens, 0);
  }
}

TEST(PeerBugs, B010_ChunkAndHitOfEveryLength) {
  for (const int prompt : {kBlock - 1, kBlock, kBlock + 1, 2 * kBlock}) {
    for (const int hit : {0, kBlock, 2 * kBlock}) {
      for (const int chunk : {1, kBlock - 1, kBlock, kBlock + 1}) {
        SchedulerOptions options = options_of(20);
        options.max_batched_tokens = chunk;
        Simulation simulation(options);
        if (hit > 0) {
          simulation.submit({.prompt = counting(hit), .max_tokens = 1});
          simulation.run();
        }
        const SequenceId id = simulation.submit({.prompt = counting(prompt), .max_tokens = 3});
        simulation.run();  // no step plans 0 tokens
        const Record& record = simulation.records[id];
        const int cached = std::min(hit, (prompt - 1) / kBlock * kBlock);
        EXPECT_EQ(record.cached_tokens, cached) << prompt << " " << hit << " " << chunk;
        EXPECT_EQ(record.num_computed, prompt - cached + 2);
        EXPECT_EQ(record.num_entries, (prompt - cached + chunk - 1) / chunk + 2);
      }
    }
  }
}

TEST(PeerBugs, B011_ThirdTurnComputesOnlyWhatIsLeft) {
  Simulation simulation(options_of(60));
  std::vector<TokenId> chat;
  // Turns end at 13, 27 and 29 tokens; a chunk is 16. Of the third, 24 tokens are in full blocks and 5 are left: one chunk of 5.
  const std::vector<int> lengths{13, 27, 29};
  const std::vector<int> cached{0, 12, 24};
  for (std::size_t turn = 0; turn < 3; ++turn) {
    while (static_cast<int>(chat.size()) < lengths[turn]) chat.push_back(static_cast<TokenId>(chat.size()) % 3);
    const SequenceId id = simulation.submit({.prompt = chat, .max_tokens = 1});
    simulation.run();
    EXPECT_EQ(simulation.records[id].num_entries, 1);
    EXPECT_EQ(simulation.records[id].cached_tokens, cached[turn]);
    EXPECT_EQ(simulation.records[id].num_computed, lengths[turn] - cached[turn]);
  }
}

TEST(PeerBugs, B013_BlocksAreFindableOnlyAfterTheStepThatFilledThem) {
  Simulation simulation(options_of(20));
  const SequenceId id = simulation.submit({.prompt = counting(10), .max_tokens = 9});
  simulation.step(0, [&] {
    const Sequence& sequence = *simulation.scheduler.find(id);
    for (const BlockId block : sequence.page_table(0).blocks())
      EXPECT_FALSE(simulation.scheduler.allocator().is_published(block));
  });
  const Sequence& sequence = *simulation.scheduler.find(id);
  const auto published = [&] {
    const auto blocks = sequence.page_table(0).blocks();
    return std::count_if(blocks.begin(), blocks.end(),
                         [&](BlockId b) { return simulation.scheduler.allocator().is_published(b); });
  };
  EXPECT_EQ(published(), 2);
  simulation.step();  // position 10
  EXPECT_EQ(published(), 2);
  simulation.step(0, [&] { EXPECT_EQ(published(), 2); });  // position 11 is being written
  EXPECT_EQ(published(), 3);
  simulation.run();

  // Ended between schedule and commit: nothing of that step is findable.
  const SequenceId ended = simulation.submit({.prompt = counting(8, 100), .max_tokens = 9});
  const auto cached_before = simulation.scheduler.stats().cached_blocks;
  simulation.step(0, [&] { simulation.scheduler.finish(ended, FinishReason::kCancelled); });
  EXPECT_EQ(simulation.scheduler.stats().cached_blocks, cached_before);
}

TEST(PeerBugs, B014_HitsArePinnedBeforeAnyBlockIsTaken) {
  // Pool of 4, three rotating prompts: a hit often is the next block that allocate() would take.
  Simulation simulation(options_of(4));
  for (int i = 0; i < 10'000; ++i) {
    simulation.submit({.prompt = counting(9, 100 * (i * i % 3)), .max_tokens = 3});
    while (simulation.scheduler.has_work()) simulation.step();
  }
  simulation.check_idle();
  EXPECT_GT(simulation.scheduler.stats().cached_tokens, 0);
}

TEST(PeerBugs, B022_SecondSessionLeavesTheFirstInTheCache) {
  Simulation simulation(options_of(100));
  const SequenceSpec a{.prompt = counting(48), .max_tokens = 1, .salt = "a"};  // 12 % of the pool
  simulation.submit(a);
  simulation.run();
  for (int i = 0; i < 3; ++i) {
    simulation.submit({.prompt = counting(100, 1000 * i), .max_tokens = 1, .salt = "b"});
    simulation.run();
  }
  const SequenceId again = simulation.submit(a);
  simulation.run();
  EXPECT_EQ(simulation.records[again].cached_tokens, 44);
}

TEST(PeerBugs, B025_SharedBlocksAreCountedOnce) {
  Simulation simulation(options_of(40));
  for (int i = 0; i < 2; ++i) simulation.submit({.prompt = counting(10), .max_tokens = 6, .num_choices = 2});
  while (simulation.scheduler.has_work()) {
    simulation.step();
    const SchedulerStats stats = simulation.scheduler.stats();
    ASSERT_EQ(stats.free_blocks + stats.cached_blocks + stats.held_blocks, stats.total_blocks);
    ASSERT_LE(stats.written_token_slots, stats.held_token_slots);
  }
  simulation.check_idle();
}

TEST(PeerBugs, B026_LastBlockIsReleasedOnce) {
  for (int prompt = 1; prompt <= 2 * kBlock; ++prompt) {
    SchedulerOptions options = options_of(60);
    options.max_batched_tokens = 4;
    Simulation simulation(options);
    simulation.alter = [](const Record& record, TokenId) { return record.received.size() == 11 ? 4 : 0; };
    const SequenceId id = simulation.submit({.prompt = counting(prompt), .max_tokens = 200, .stop_token_ids = {4}});
    // Ends by a stop token, and is cancelled while its last step runs: a second release would throw.
    while (simulation.scheduler.has_work()) {
      simulation.step(0, [&] {
        if (simulation.records[id].received.size() == 11) simulation.scheduler.finish(id, FinishReason::kCancelled);
      });
    }
    EXPECT_EQ(simulation.scheduler.stats().held_blocks, 0);
  }
}

TEST(PeerBugs, B034_ManyChoicesInASmallPool) {
  SchedulerOptions options = options_of(12);
  options.max_running = 50;
  Simulation simulation(options);
  simulation.submit({.prompt = counting(10), .max_tokens = 20, .num_choices = 50});
  simulation.run(5'000);  // all 50 finish with the tokens of the large pool
  EXPECT_GT(simulation.scheduler.stats().num_preemptions, 0);
}

TEST(PeerBugs, B043_LivelockWithUndersizedCache) {
  for (const bool prefix_cache : {true, false}) {
    SchedulerOptions options = options_of(7);
    options.prefix_cache = prefix_cache;
    Simulation simulation(options);
    std::vector<SequenceId> order;
    for (int i = 0; i < 200; ++i) {
      simulation.submit({.prompt = counting(6, i * 10), .max_tokens = 20});  // 25 computed tokens: all 7 blocks
    }
    int num_steps = 0;
    for (; simulation.scheduler.has_work(); ++num_steps) {
      ASSERT_LT(num_steps, 200 * 30);
      simulation.step();
      for (const SequenceEvent& event : simulation.events) {
        if (event.finish_reason != FinishReason::kNone) order.push_back(event.id);
      }
    }
    simulation.check_idle();
    EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
    EXPECT_LE(simulation.scheduler.stats().num_preemptions, 200 * 7);
  }
}

TEST(PeerBugs, B044_OneScheduleWithoutAFreeBlockEnds) {
  SchedulerOptions options = options_of(30);
  options.max_batched_tokens = 30 * kBlock;
  Simulation simulation(options);
  for (int i = 0; i < 30; ++i) simulation.submit({.prompt = counting(kBlock, i * 10), .max_tokens = 20});
  simulation.step();
  ASSERT_EQ(simulation.scheduler.stats().num_running, 30);
  ASSERT_EQ(simulation.scheduler.stats().free_blocks + simulation.scheduler.stats().cached_blocks, 0);
  simulation.step();  // all 30 need a block: 15 give theirs to 15, each at most once
  EXPECT_EQ(simulation.scheduler.stats().num_preemptions, 15);
  EXPECT_EQ(simulation.plan.entries.size(), 15u);
  simulation.run();
}

TEST(PeerBugs, B046_CountersStayRightAfterPreemption) {
  Simulation simulation(options_of(9));
  for (const TokenId start : {0, 50}) simulation.submit({.prompt = counting(10, start), .max_tokens = 1});
  simulation.run();
  const SequenceId first = simulation.submit({.prompt = counting(10), .max_tokens = 20});
  const SequenceId second = simulation.submit({.prompt = counting(10, 50), .max_tokens = 20});
  simulation.run();
  EXPECT_GT(simulation.scheduler.stats().num_preemptions, 0);
  EXPECT_EQ(simulation.records[first].cached_tokens, 8);
  EXPECT_EQ(simulation.records[first].cached_tokens + simulation.records[first].num_computed - 19,
            10);                                           // hit + computed == prompt
  EXPECT_EQ(simulation.records[second].cached_tokens, 8);  // what it finds again on resume is its own
  EXPECT_EQ(simulation.scheduler.stats().cached_tokens, 16);
}

TEST(PeerBugs, B047_GeneratedTokensAreThoseDelivered) {
  Simulation simulation(options_of(8));
  for (int i = 0; i < 10; ++i) simulation.submit({.prompt = counting(6, 10 * i), .max_tokens = 15});
  simulation.run();  // compares the counter with the tokens received
  EXPECT_GT(simulation.scheduler.stats().num_preemptions, 0);
  EXPECT_EQ(simulation.scheduler.stats().generated_tokens, 150);
}

TEST(PeerBugs, B050_PromptsThatCanNeverFitAreRefusedAtOnce) {
  SchedulerOptions options{.block_size = 16, .num_blocks = 101, .max_context = 100'000};
  Simulation simulation(options);
  const std::string message = refusal(simulation.scheduler, {.prompt = counting(1601)});
  EXPECT_THAT(message, HasSubstr("prompt: 1601"));
  EXPECT_THAT(message, HasSubstr("1600"));
  EXPECT_FALSE(simulation.scheduler.has_work());
  const SequenceId id = simulation.submit({.prompt = counting(1590), .max_tokens = 100});
  const SequenceId brim = simulation.submit({.prompt = counting(1600), .max_tokens = 100});
  simulation.run();
  EXPECT_EQ(simulation.records[id].finish_reason, FinishReason::kLength);
  EXPECT_EQ(simulation.records[id].received.size(), 11u);  // the last needs no slot
  EXPECT_EQ(simulation.records[brim].received.size(), 1u);
}

TEST(PeerBugs, B052_EveryRunningSequenceIsPlannedWhileThereIsBudget) {
  // Priorities so that victims stand before and behind; Simulation::check_plan fails if one is skipped.
  Simulation simulation(options_of(10));
  for (const int priority : {2, 0, 3, 1})
    simulation.submit({.prompt = counting(7, priority * 20), .max_tokens = 12, .priority = priority});
  simulation.run();
  EXPECT_GT(simulation.scheduler.stats().num_preemptions, 0);
}

TEST(PeerBugs, B053_SlotShortagePreemptsForStrictlyHigherPriorityOnly) {
  SchedulerOptions options = options_of(60);
  options.max_running = 2;
  Simulation simulation(options);
  simulation.submit({.prompt = counting(4, 0), .max_tokens = 30, .priority = 5});
  const SequenceId victim = simulation.submit({.prompt = counting(4, 10), .max_tokens = 30, .priority = 5});
  simulation.step();
  const SequenceId equal = simulation.submit({.prompt = counting(4, 20), .max_tokens = 30, .priority = 5});
  simulation.step();
  EXPECT_EQ(simulation.scheduler.find(equal)->state(), SequenceState::kWaiting);
  const SequenceId urgent = simulation.submit({.prompt = counting(4, 30), .max_tokens = 5, .priority = 0});
  simulation.step();
  EXPECT_EQ(simulation.scheduler.find(urgent)->state(), SequenceState::kRunning);
  EXPECT_EQ(simulation.scheduler.find(urgent)->num_generated_tokens(), 1);
  EXPECT_EQ(simulation.scheduler.find(victim)->state(), SequenceState::kWaiting);
  simulation.run();
  EXPECT_EQ(simulation.scheduler.stats().num_preemptions, 1);
  EXPECT_EQ(simulation.records[victim].received.size(), 30u);
}

TEST(PeerBugs, B053_AWaitingSiblingDisplacesNobody) {
  SchedulerOptions options = options_of(60);
  options.max_running = 2;
  options.max_batched_tokens = 4;
  Simulation simulation(options);
  simulation.submit({.prompt = counting(4, 50), .max_tokens = 60, .priority = 5});
  simulation.step();
  simulation.submit({.prompt = counting(40), .max_tokens = 2, .priority = 0, .num_choices = 2});
  for (int i = 0; i < 5; ++i) simulation.step();
  EXPECT_EQ(simulation.scheduler.stats().num_preemptions, 0);  // choice 1 waits for choice 0, not for a slot
  simulation.run();
}

TEST(PeerBugs, B070_BlockZeroIsInNoLiveTable) {
  Simulation simulation(options_of(12), {{0}, {5}});
  for (int i = 0; i < 20; ++i) simulation.submit({.prompt = counting(3 + i % 9, 10 * i), .max_tokens = 14});
  while (simulation.scheduler.has_work()) {
    simulation.step();
    for (const auto& [id, record] : simulation.records) {
      const Sequence* sequence = simulation.scheduler.find(id);
      if (sequence == nullptr) continue;
      for (int g = 0; g < 2; ++g) {
        const PageTable& table = sequence->page_table(g);
        const auto live = table.blocks().subspan(static_cast<std::size_t>(table.first_live_block()));
        EXPECT_EQ(std::count(live.begin(), live.end(), kNullBlock), 0);
      }
    }
  }
  simulation.check_idle();
}

TEST(PeerBugs, B079_WindowKeepsTheRightBlocksAndTheHitIsMaximal) {
  for (const int window : {1, 3, kBlock, kBlock + 1, 9}) {
    for (int prompt = std::max(1, window - 1); prompt <= window + 2 * kBlock; ++prompt) {
      SchedulerOptions options = options_of(60);
      options.max_batched_tokens = 64;
      Simulation simulation(options, {{0}, {window}});
      const SequenceId id = simulation.submit({.prompt = counting(prompt), .max_tokens = 2});
      simulation.step();
      // The next position is `prompt`; it sees positions from prompt - window + 1 on.
      const PageTable& table = simulation.scheduler.find(id)->page_table(1);
      const int first_seen = std::max(0, prompt - window + 1);
      const int num_blocks = (prompt + kBlock - 1) / kBlock;
      EXPECT_EQ(table.num_blocks() - table.first_live_block(), std::max(0, num_blocks - first_seen / kBlock));
      simulation.run();
      const SequenceId again = simulation.submit({.prompt = counting(prompt), .max_tokens = 2});
      simulation.run();  // reads exactly the slots of the dense windowed reference
      EXPECT_EQ(simulation.records[again].cached_tokens, (prompt - 1) / kBlock * kBlock) << window << " " << prompt;
    }
  }
}

TEST(PeerBugs, B082_RunsToTheVeryLastTokenOfTheContext) {
  for (const int max_context : {8 * kBlock - 1, 8 * kBlock, 8 * kBlock + 1}) {
    SchedulerOptions options = options_of((max_context + kBlock - 1) / kBlock);
    options.max_context = max_context;
    Simulation simulation(options);
    const SequenceId id = simulation.submit({.prompt = counting(5), .max_tokens = 1000});
    while (simulation.scheduler.has_work()) {
      simulation.step(0, [&] {
        const Sequence& sequence = *simulation.scheduler.find(id);
        EXPECT_LE(sequence.num_tokens(), sequence.page_table(0).num_blocks() * kBlock);
        EXPECT_LE(sequence.page_table(0).num_blocks(), (max_context + kBlock - 1) / kBlock);
      });
    }
    EXPECT_EQ(simulation.records[id].finish_reason, FinishReason::kLength);
    EXPECT_EQ(simulation.records[id].received.size(), static_cast<std::size_t>(max_context - 5));
  }
}

TEST(PeerBugs, B088_EqualPositionsOfTwoSequencesAreApart) {
  Simulation simulation(options_of(40));
  for (const TokenId first : {0, 1}) simulation.submit({.prompt = counting(11, first), .max_tokens = 20});
  simulation.run();
}

TEST(PeerBugs, B107_EmptyPromptIsRefused) {
  Simulation simulation(options_of(10));
  EXPECT_THAT(refusal(simulation.scheduler, {}), HasSubstr("prompt: 0"));
  EXPECT_FALSE(simulation.scheduler.has_work());
  simulation.submit({.prompt = {1}, .max_tokens = 2});
  simulation.run();
}

TEST(PeerBugs, B112_CancelEndsOneSequenceOnly) {
  SchedulerOptions options = options_of(40);
  options.max_running = 1;
  Simulation simulation(options);
  simulation.submit({.prompt = counting(6), .max_tokens = 10});
  const SequenceId queued = simulation.submit({.prompt = counting(6, 20), .max_tokens = 10});
  simulation.step();
  EXPECT_TRUE(simulation.scheduler.finish(queued, FinishReason::kCancelled));
  simulation.run();
  EXPECT_TRUE(simulation.records[queued].received.empty());
}

TEST(PeerBugs, B115_HugeMaxTokensIsClamped) {
  Simulation simulation(options_of(200));
  const SequenceId id = simulation.submit({.prompt = counting(10), .max_tokens = std::numeric_limits<int>::max()});
  simulation.run();
  EXPECT_EQ(simulation.records[id].received.size(), 390u);
  EXPECT_THAT(refusal(simulation.scheduler, {.prompt = {1}, .max_tokens = 0}), HasSubstr("max_tokens: 0"));
  EXPECT_THAT(refusal(simulation.scheduler, {.prompt = {1}, .num_choices = 0}), HasSubstr("num_choices: 0"));
}

TEST(PeerBugs, B116_MaxTokensBeyondTheContextIsClampedAndAFullContextRefused) {
  SchedulerOptions options = options_of(200);
  options.max_context = 50;
  Simulation simulation(options);
  const SequenceId id = simulation.submit({.prompt = counting(49), .max_tokens = 40});
  simulation.run();
  EXPECT_EQ(simulation.records[id].finish_reason, FinishReason::kLength);
  EXPECT_EQ(simulation.records[id].received.size(), 1u);
  const std::string message = refusal(simulation.scheduler, {.prompt = counting(50)});
  EXPECT_THAT(message, HasSubstr("prompt: 50 tokens"));
  EXPECT_THAT(message, HasSubstr("context holds 50"));
}

}  // namespace
}  // namespace quire::testing
