// The reading half of Scheduler: statistics and invariants, both derived from the structure and from no second set of counters.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/check.h"
#include "core/math.h"
#include "scheduler/scheduler.h"

namespace quire {

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = stats_;
  stats.num_waiting = static_cast<int>(waiting_.size());
  stats.num_running = static_cast<int>(running_.size());
  stats.total_blocks = allocator_.num_blocks() - 1;
  stats.free_blocks = allocator_.num_free();
  stats.cached_blocks = allocator_.num_cached();
  stats.held_blocks = allocator_.num_held();
  stats.held_token_slots = stats.held_blocks * options_.block_size;
  // Shared blocks are full, so slots without a token lie behind the computed tokens of one sequence each.
  stats.written_token_slots = stats.held_token_slots;
  for (const Sequence* sequence : running_) {
    for (int g = 0; g < sequence->num_groups(); ++g) {
      const std::int64_t num_slots = std::int64_t{sequence->page_table(g).num_blocks()} * options_.block_size;
      stats.written_token_slots -= num_slots - sequence->num_computed_tokens();
    }
  }
  return stats;
}

void Scheduler::check_invariants() const {
  allocator_.check_invariants();
  QUIRE_CHECK(running_.size() + waiting_.size() == sequences_.size());
  QUIRE_CHECK(static_cast<int>(running_.size()) <= options_.max_running);
  std::vector<int> num_owners(static_cast<std::size_t>(allocator_.num_blocks()), 0);
  std::int64_t num_written = 0;
  for (const auto* queue : {&running_, &waiting_}) {
    QUIRE_CHECK(std::is_sorted(queue->begin(), queue->end(), Sequence::runs_before));
    const SequenceState state = queue == &running_ ? SequenceState::kRunning : SequenceState::kWaiting;
    for (const Sequence* sequence : *queue) {
      QUIRE_CHECK_MSG(find(sequence->id()) == sequence, "sequence {} is queued and unknown", sequence->id());
      QUIRE_CHECK_MSG(sequence->state() == state, "sequence {} is in the wrong queue", sequence->id());
      check_sequence(*sequence, num_owners, num_written);
    }
  }
  for (BlockId id = 1; id < allocator_.num_blocks(); ++id) {
    const int expected = num_owners[static_cast<std::size_t>(id)];
    QUIRE_CHECK_MSG(allocator_.num_owners(id) == expected, "block {} counts {} owners and has {}", id, allocator_.num_owners(id),
                    expected);
  }
  QUIRE_CHECK_MSG(stats().written_token_slots == num_written, "{} slots are written, {} reported", num_written,
                  stats().written_token_slots);
}

// Adds the sequence's references to `num_owners` [N], and the slots with a token of blocks not seen before to `num_written`.
void Scheduler::check_sequence(const Sequence& sequence, std::vector<int>& num_owners, std::int64_t& num_written) const {
  const int block_size = options_.block_size;
  const int num_computed = sequence.num_computed_tokens();
  QUIRE_CHECK_MSG(num_computed < sequence.num_tokens(), "sequence {} has {} of {} tokens computed", sequence.id(), num_computed,
                  sequence.num_tokens());
  QUIRE_CHECK(plan_in_flight_ || (!sequence.in_flight() && sequence.finish_reason() == FinishReason::kNone));
  for (int g = 0; g < sequence.num_groups(); ++g) {
    const PageTable& table = sequence.page_table(g);
    if (sequence.state() == SequenceState::kWaiting) {
      QUIRE_CHECK_MSG(table.num_blocks() == 0 && num_computed == 0, "sequence {} waits and holds blocks", sequence.id());
      continue;
    }
    QUIRE_CHECK_MSG(table.num_blocks() * block_size >= num_computed, "sequence {} has {} tokens in {} blocks", sequence.id(),
                    num_computed, table.num_blocks());
    QUIRE_CHECK(table.num_published() * block_size <= num_computed);
    const int first_seen = PageTable::first_block_seen(num_computed, table.window(), block_size);
    QUIRE_CHECK_MSG(table.first_live_block() == std::min(first_seen, table.num_blocks()),
                    "sequence {} group {}: block {} is the first live one, {} the first seen", sequence.id(), g,
                    table.first_live_block(), first_seen);
    for (int i = 0; i < table.num_blocks(); ++i) {
      const BlockId id = table.blocks()[static_cast<std::size_t>(i)];
      QUIRE_CHECK_MSG((id == kNullBlock) == (i < table.first_live_block()), "sequence {} entry {} holds {}", sequence.id(), i,
                      id);
      if (id == kNullBlock) continue;
      if (++num_owners[static_cast<std::size_t>(id)] == 1)
        num_written += std::clamp(num_computed - i * block_size, 0, block_size);
      // Shared or findable blocks are full: nothing is ever written to them again.
      const bool is_full = (i + 1) * block_size <= num_computed;
      QUIRE_CHECK_MSG(is_full || (allocator_.num_owners(id) == 1 && !allocator_.is_published(id)),
                      "block {} of sequence {} is shared or published before it is full", id, sequence.id());
    }
  }
}

}  // namespace quire
