#include "engine/batch_builder.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <span>

#include "core/check.h"
#include "core/math.h"
#include "scheduler/sequence.h"

namespace quire {

namespace {

void clear(HostBatch& batch, const StepPlan& plan) {
  batch.num_tokens = plan.num_tokens;
  batch.num_sequences = static_cast<int>(plan.entries.size());
  batch.num_decode = plan.num_decode;
  batch.token_ids.clear();
  batch.positions.clear();
  batch.q_indptr.assign(1, 0);
  batch.kv_lens.clear();
  batch.logit_rows.clear();
  batch.logits.clear();
  batch.groups.resize(plan.entries.empty() ? 0 : static_cast<std::size_t>(plan.entries.front().sequence->num_groups()));
  for (HostBatchGroup& group : batch.groups) {
    group.slots.clear();
    group.page_indptr.assign(1, 0);
    group.page_indices.clear();
  }
}

void add_pages(const PageTable& table, const ScheduledSequence& entry, HostBatchGroup& group) {
  const int kv_len = entry.first_position + entry.num_tokens;
  for (int position = entry.first_position; position < kv_len; ++position) group.slots.push_back(table.slot(position));
  const auto pages = table.blocks().first(static_cast<std::size_t>(table.num_blocks_for(kv_len)));
  group.page_indices.insert(group.page_indices.end(), pages.begin(), pages.end());
  group.page_indptr.push_back(static_cast<std::int32_t>(group.page_indices.size()));
}

void add_logits(const ScheduledSequence& entry, int entry_index, int first_row, HostBatch& batch) {
  const auto add = [&](int i, bool samples) {
    batch.logit_rows.push_back(first_row + i);
    batch.logits.push_back(
        {.entry = entry_index, .row = first_row + i, .target_position = entry.first_position + i + 1, .samples = samples});
  };
  if (entry.sequence->wants_prompt_logprobs()) {
    const int first = std::max(0, entry.sequence->num_scored_tokens() - entry.first_position);  // not again after a preemption
    const int last = std::min(entry.num_tokens, entry.sequence->num_prompt_tokens() - 1 - entry.first_position);
    for (int i = first; i < last; ++i) add(i, false);
  }
  if (entry.samples) add(entry.num_tokens - 1, true);
}

}  // namespace

void build_batch(const StepPlan& plan, HostBatch& batch) {
  clear(batch, plan);
  for (std::size_t s = 0; s < plan.entries.size(); ++s) {
    const ScheduledSequence& entry = plan.entries[s];
    const Sequence& sequence = *entry.sequence;
    const int first_row = batch.q_indptr.back();
    const auto tokens =
        sequence.tokens().subspan(static_cast<std::size_t>(entry.first_position), static_cast<std::size_t>(entry.num_tokens));
    batch.token_ids.insert(batch.token_ids.end(), tokens.begin(), tokens.end());
    for (int i = 0; i < entry.num_tokens; ++i) batch.positions.push_back(entry.first_position + i);
    batch.q_indptr.push_back(first_row + entry.num_tokens);
    batch.kv_lens.push_back(entry.first_position + entry.num_tokens);
    for (std::size_t g = 0; g < batch.groups.size(); ++g)
      add_pages(sequence.page_table(static_cast<int>(g)), entry, batch.groups[g]);
    add_logits(entry, static_cast<int>(s), first_row, batch);
  }
}

void pad_batch(HostBatch& batch, int num_sequences) {
  QUIRE_CHECK(batch.num_decode == batch.num_sequences && batch.num_tokens == batch.num_decode);
  QUIRE_CHECK_MSG(batch.num_decode <= num_sequences, "{} rows padded to {}", batch.num_decode, num_sequences);
  const auto size = static_cast<std::size_t>(num_sequences);
  batch.num_tokens = batch.num_sequences = batch.num_decode = num_sequences;
  batch.token_ids.resize(size, 0);
  batch.positions.resize(size, 0);
  batch.kv_lens.resize(size, 0);
  while (batch.q_indptr.size() <= size) batch.q_indptr.push_back(batch.q_indptr.back() + 1);
  for (HostBatchGroup& group : batch.groups) {
    group.slots.resize(size, -1);
    group.page_indptr.resize(size + 1, group.page_indptr.back());
  }
}

int padded_rows(int num_decode, int most) {
  const auto rows = static_cast<unsigned>(num_decode);
  // Powers of two, and from 8 on the three quarters between them.
  const unsigned power = std::bit_ceil(rows);
  const unsigned padded = power > 8 && rows <= power / 4 * 3 ? power / 4 * 3 : power;
  return std::max(num_decode, std::min(static_cast<int>(padded), most));
}

}  // namespace quire
