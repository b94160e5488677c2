// StepPlan: the decision for one step, as data. Made by Scheduler::schedule, read by build_batch, given back to
// Scheduler::commit.
#pragma once

#include <vector>

#include "kv/block_allocator.h"

namespace quire {

class Sequence;

struct ScheduledSequence {
  Sequence* sequence = nullptr;  // alive until commit; owned by the scheduler
  int first_position = 0;        // equals sequence->num_computed_tokens()
  int num_tokens = 0;            // 1 is a decode row
  bool samples = false;          // this chunk reaches the last token, so its last row yields one
};

// Block `to` becomes a copy of block `from` before the forward pass (copy-on-write).
struct BlockCopy {
  BlockId from = kNullBlock;
  BlockId to = kNullBlock;
};

struct StepPlan {
  std::vector<ScheduledSequence> entries;  // decode rows first, then prefill chunks
  std::vector<BlockCopy> copies;
  int num_tokens = 0;  // T
  int num_decode = 0;  // leading entries with num_tokens == 1
};

}  // namespace quire
