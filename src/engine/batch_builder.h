// build_batch: one step's decision (StepPlan) as the flat arrays the kernels read. A pure function: it changes neither sequences
// nor blocks and needs no device. Its output keeps its capacity from step to step, so the steady state allocates nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/step_plan.h"

namespace quire {

// The part that differs by KV group.
struct HostBatchGroup {
  std::vector<std::int64_t> slots;         // [T] where each token's K and V go
  std::vector<std::int32_t> page_indptr;   // [S + 1]
  std::vector<std::int32_t> page_indices;  // [P] kNullBlock where the block has left the window: never followed
};

// A row whose logits are wanted.
struct LogitRow {
  int entry = 0;            // index into StepPlan::entries
  int row = 0;              // of the batch, 0 to T - 1
  int target_position = 0;  // position of the token this row predicts: the row's own plus 1
  bool samples = false;     // true: yields the sequence's next token. false: scores the prompt token at target_position; each is
                            // asked once and in order, preempted or not
};

struct HostBatch {
  int num_tokens = 0;                   // T
  int num_sequences = 0;                // S
  int num_decode = 0;                   // the first sequences, of one new token each
  std::vector<std::int32_t> token_ids;  // [T]
  std::vector<std::int32_t> positions;  // [T]
  std::vector<std::int32_t> q_indptr;   // [S + 1]
  std::vector<std::int32_t> kv_lens;    // [S] the new tokens included
  std::vector<HostBatchGroup> groups;
  std::vector<std::int32_t> logit_rows;  // [R] ascending: LogitRow::row of `logits`
  std::vector<LogitRow> logits;          // [R] those with `samples` are in the order that Scheduler::commit expects
};

void build_batch(const StepPlan& plan, HostBatch& batch);

// Adds decode rows of nothing (no positions, no slot: they read and write no block) up to `num_sequences`, for devices that
// replay steps of equal shape. REQUIRES: a batch of decode rows only, of at most that many.
void pad_batch(HostBatch& batch, int num_sequences);

// The number of rows that a step of `num_decode` decode rows is padded to, `most` at most: few different ones, few rows wasted.
int padded_rows(int num_decode, int most);

}  // namespace quire
