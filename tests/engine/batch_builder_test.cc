#include "engine/batch_builder.h"

#include <gtest/gtest.h>

#include <numeric>
#include <tuple>
#include <vector>

#include "scheduler/scheduler.h"

namespace quire {
namespace {

std::vector<TokenId> counting(int n, TokenId first) {
  std::vector<TokenId> tokens(static_cast<std::size_t>(n));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

void commit(Scheduler& scheduler, const StepPlan& plan, TokenId token) {
  std::vector<TokenId> sampled;
  for (const ScheduledSequence& entry : plan.entries) {
    if (entry.samples) sampled.push_back(token);
  }
  std::vector<SequenceEvent> events;
  scheduler.commit(plan, sampled, events);
}

std::vector<std::tuple<int, int, int, bool>> flat(const HostBatch& batch) {
  std::vector<std::tuple<int, int, int, bool>> rows;
  for (const LogitRow& row : batch.logits) rows.emplace_back(row.entry, row.row, row.target_position, row.samples);
  return rows;
}
using Rows = std::vector<std::tuple<int, int, int, bool>>;

TEST(BatchBuilder, MixedStepAsArrays) {
  Scheduler scheduler({.block_size = 4, .num_blocks = 20, .max_batched_tokens = 8, .max_context = 50}, {{0}, {3}});
  HostBatch batch;
  scheduler.submit({.prompt = counting(5, 10), .max_tokens = 9});
  const StepPlan& plan = scheduler.schedule(0);
  build_batch(plan, batch);
  EXPECT_EQ(batch.token_ids, (std::vector<std::int32_t>{10, 11, 12, 13, 14}));
  commit(scheduler, plan, 77);

  scheduler.submit({.prompt = counting(9, 30), .max_tokens = 9});
  scheduler.schedule(0);
  build_batch(plan, batch);
  EXPECT_EQ(batch.num_tokens, 8);
  EXPECT_EQ(batch.num_sequences, 2);
  EXPECT_EQ(batch.num_decode, 1);
  EXPECT_EQ(batch.token_ids, (std::vector<std::int32_t>{77, 30, 31, 32, 33, 34, 35, 36}));
  EXPECT_EQ(batch.positions, (std::vector<std::int32_t>{5, 0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(batch.q_indptr, (std::vector<std::int32_t>{0, 1, 8}));
  EXPECT_EQ(batch.kv_lens, (std::vector<std::int32_t>{6, 7}));
  ASSERT_EQ(batch.groups.size(), 2u);
  // Blocks were given out group by group: 1, 2 and 3, 4 to the first; then 5, 6 and 7, 8. After 5 tokens the next position, 5,
  // sees 3 to 5 in the sliding group, so nothing has left the window yet.
  EXPECT_EQ(batch.groups[0].page_indptr, (std::vector<std::int32_t>{0, 2, 4}));
  EXPECT_EQ(batch.groups[0].page_indices, (std::vector<std::int32_t>{1, 2, 5, 6}));
  EXPECT_EQ(batch.groups[1].page_indices, (std::vector<std::int32_t>{3, 4, 7, 8}));
  EXPECT_EQ(batch.groups[0].slots, (std::vector<std::int64_t>{9, 20, 21, 22, 23, 24, 25, 26}));
  EXPECT_EQ(batch.groups[1].slots, (std::vector<std::int64_t>{17, 28, 29, 30, 31, 32, 33, 34}));
  EXPECT_EQ(batch.logit_rows, (std::vector<std::int32_t>{0}));  // the chunk does not reach the prompt's end
  EXPECT_EQ(flat(batch), (Rows{{0, 0, 6, true}}));
  commit(scheduler, plan, 78);

  // Position 6 sees 4 to 6: the first sliding block of sequence 1 is gone, and its entry stays as null.
  scheduler.schedule(0);
  build_batch(plan, batch);
  EXPECT_EQ(batch.groups[1].page_indices,
            (std::vector<std::int32_t>{kNullBlock, 4, kNullBlock, 8, batch.groups[1].page_indices[4]}));
  EXPECT_EQ(batch.logit_rows, (std::vector<std::int32_t>{0, 2}));
  EXPECT_EQ(flat(batch), (Rows{{0, 0, 7, true}, {1, 2, 9, true}}));
  commit(scheduler, plan, 79);
}

TEST(BatchBuilder, EmptyPlanIsAnEmptyBatch) {
  Scheduler scheduler({.num_blocks = 20}, {{0}});
  HostBatch batch;
  build_batch(scheduler.schedule(0), batch);
  EXPECT_EQ(batch.num_tokens, 0);
  EXPECT_EQ(batch.q_indptr, (std::vector<std::int32_t>{0}));
}

TEST(BatchBuilder, PadsDecodeRowsWithRowsThatTouchNothing) {
  Scheduler scheduler({.block_size = 4, .num_blocks = 20, .max_context = 50}, {{0}, {8}});
  for (int i = 0; i < 3; ++i) scheduler.submit({.prompt = counting(5 + i, 10), .max_tokens = 9});
  commit(scheduler, scheduler.schedule(0), 70);
  const StepPlan& plan = scheduler.schedule(0);
  HostBatch plain, padded;
  build_batch(plan, plain);
  build_batch(plan, padded);
  pad_batch(padded, 6);
  EXPECT_EQ(padded.num_tokens, 6);
  EXPECT_EQ(padded.num_sequences, 6);
  EXPECT_EQ(padded.num_decode, 6);
  EXPECT_EQ(padded.q_indptr, (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(padded.kv_lens, (std::vector<std::int32_t>{6, 7, 8, 0, 0, 0}));
  EXPECT_EQ(padded.token_ids, (std::vector<std::int32_t>{70, 70, 70, 0, 0, 0}));
  EXPECT_EQ(padded.positions, (std::vector<std::int32_t>{5, 6, 7, 0, 0, 0}));
  EXPECT_EQ(padded.logit_rows, plain.logit_rows);
  for (std::size_t g = 0; g < 2; ++g) {
    EXPECT_EQ(padded.groups[g].page_indices, plain.groups[g].page_indices);
    const std::int32_t pages = plain.groups[g].page_indptr.back();
    EXPECT_EQ(std::vector<std::int32_t>(padded.groups[g].page_indptr.begin() + 3, padded.groups[g].page_indptr.end()),
              (std::vector<std::int32_t>(4, pages)));
    EXPECT_EQ(std::vector<std::int64_t>(padded.groups[g].slots.begin() + 3, padded.groups[g].slots.end()),
              (std::vector<std::int64_t>(3, -1)));
  }
  commit(scheduler, plan, 71);
}

TEST(BatchBuilder, PadsToFewNumbersOfRows) {
  const auto padded = [](int rows) { return padded_rows(rows, 1000); };
  EXPECT_EQ(
      (std::vector<int>{padded(1), padded(3), padded(8), padded(9), padded(12), padded(13), padded(17), padded(25), padded(200)}),
      (std::vector<int>{1, 4, 8, 12, 12, 16, 24, 32, 256}));
  EXPECT_EQ(padded_rows(70, 80), 80);
  EXPECT_EQ(padded_rows(80, 80), 80);
  EXPECT_EQ(padded_rows(90, 80), 90);  // never fewer
}

// Every row that predicts a prompt token, whatever the chunking; the second time the cache is warm, and still every row is there.
TEST(PeerBugs, B109_PromptLogprobsListEveryPromptRowColdAndWarm) {
  for (const int chunk : {1, 3, 4, 9, 16}) {
    Scheduler scheduler({.block_size = 4, .num_blocks = 20, .max_batched_tokens = chunk, .max_context = 50}, {{0}});
    HostBatch batch;
    for (int turn = 0; turn < 2; ++turn) {
      scheduler.submit({.prompt = counting(9, 10), .max_tokens = 2, .prompt_logprobs = true, .num_choices = 2});
      std::vector<int> targets;
      int num_samples = 0;
      while (scheduler.has_work()) {
        const StepPlan& plan = scheduler.schedule(0);
        build_batch(plan, batch);
        for (const LogitRow& row : batch.logits) {
          if (row.samples) {
            ++num_samples;
          } else {
            EXPECT_EQ(plan.entries[static_cast<std::size_t>(row.entry)].sequence->choice(), 0);
            EXPECT_EQ(batch.positions[static_cast<std::size_t>(row.row)] + 1, row.target_position);
            targets.push_back(row.target_position);
          }
        }
        commit(scheduler, plan, 5);
      }
      EXPECT_EQ(targets, counting(8, 1)) << "chunk " << chunk << ", turn " << turn;
      EXPECT_EQ(num_samples, 4);
    }
  }
}

// A preempted prompt is computed again, and its rows are not asked again.
TEST(BatchBuilder, APreemptionDoesNotRepeatPromptRows) {
  Scheduler scheduler({.block_size = 4, .num_blocks = 8, .max_batched_tokens = 6, .max_context = 50}, {{0}});
  HostBatch batch;
  scheduler.submit({.prompt = counting(9, 10), .max_tokens = 12});
  const SequenceId scored = scheduler.submit({.prompt = counting(9, 30), .max_tokens = 12, .prompt_logprobs = true});
  std::vector<int> targets;
  while (scheduler.has_work()) {
    const StepPlan& plan = scheduler.schedule(0);
    build_batch(plan, batch);
    for (const LogitRow& row : batch.logits) {
      if (row.samples) continue;
      EXPECT_EQ(plan.entries[static_cast<std::size_t>(row.entry)].sequence->id(), scored);
      targets.push_back(row.target_position);
    }
    commit(scheduler, plan, 5);
  }
  EXPECT_GT(scheduler.stats().num_preemptions, 0);
  EXPECT_EQ(targets, counting(8, 1));
}

}  // namespace
}  // namespace quire
