// Simulation: a scheduler driven by a model of integers. KV memory is one hash per slot: of the tokens up to there, the salt and
// the KV group; attention checks that every slot it may read holds the right hash; the next token is a function of the hash
// read at the last row. So a wrong slot, a block that was reused or published too early, a bad copy, or a false prefix hit
// ends in an exception or in tokens that differ from those of the request alone (`expected`).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/batch_builder.h"
#include "scheduler/scheduler.h"

namespace quire::testing {

inline void require(bool condition, const std::string& message) {
  if (!condition) throw std::runtime_error(message);
}

inline std::vector<TokenId> counting(int n, TokenId first = 0) {
  std::vector<TokenId> tokens(static_cast<std::size_t>(n));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

inline std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = (a ^ (b * 0x9e3779b97f4a7c15ULL)) + 0x632be59bd9b4e019ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

struct Record {
  SequenceSpec spec;
  int choice = 0;
  std::vector<TokenId> received;
  FinishReason finish_reason = FinishReason::kNone;
  int cached_tokens = -1;  // of the first event
  int num_computed = 0;    // tokens computed over all steps
  int num_entries = 0;     // plans it was in
};

class Simulation {
 public:
  static constexpr int kVocabulary = 5;

  explicit Simulation(const SchedulerOptions& options, std::vector<KvGroupSpec> groups = {{.window = 0}})
      : scheduler(options, groups),
        groups_(std::move(groups)),
        slots_(static_cast<std::size_t>(options.num_blocks) * static_cast<std::size_t>(options.block_size), kPoison) {}

  Scheduler scheduler;
  std::map<SequenceId, Record> records;
  std::vector<SequenceEvent> events;  // of the last step
  StepPlan plan;                      // copy of the last plan; sequences may be gone
  std::function<TokenId(const Record&, TokenId)> alter = [](const Record&, TokenId token) { return token; };
  bool allow_empty_plan = false;  // an allocation was made to fail
  int prefill_limit = Scheduler::kNoLimit;

  SequenceId submit(const SequenceSpec& spec) {
    const SequenceId id = scheduler.submit(spec);
    for (int i = 0; i < spec.num_choices; ++i) {
      Record& record = records[id + static_cast<SequenceId>(i)];
      record.spec = spec;
      record.choice = i;
    }
    return id;
  }

  // `in_flight` runs between schedule and commit.
  void step(std::int64_t now_us = 0, const std::function<void()>& in_flight = {}) {
    const SchedulerStats before = scheduler.stats();
    const std::set<SequenceId> running_before = running();
    const StepPlan& current = scheduler.schedule(now_us, prefill_limit);
    plan = current;
    // One preemption may have been for a slot; any other was for blocks, and then those new may run that matter more.
    const bool was_full = before.num_running == scheduler.options().max_running;
    const bool lacked_blocks = scheduler.stats().num_preemptions > before.num_preemptions + (was_full ? 1 : 0);
    if (lacked_blocks) check_admitted(running_before);
    if (scheduler.stats().num_preemptions == before.num_preemptions) check_prefill_limit(running_before);
    scheduler.check_invariants();
    check_plan(scheduler.stats().num_preemptions != before.num_preemptions);
    if (in_flight) in_flight();
    const std::vector<TokenId> sampled = execute(current);
    events.clear();
    scheduler.commit(current, sampled, events);
    scheduler.check_invariants();
    take_events();
  }

  // Steps until no work is left; returns their number.
  int run(int max_steps = 100'000) {
    int num_steps = 0;
    for (; scheduler.has_work(); ++num_steps) {
      require(num_steps < max_steps, "no progress in " + std::to_string(max_steps) + " steps");
      step();
    }
    check_idle();
    return num_steps;
  }

  void check_idle() const {
    const SchedulerStats stats = scheduler.stats();
    require(stats.held_blocks == 0 && stats.free_blocks + stats.cached_blocks == stats.total_blocks, "blocks are lost");
    require(stats.num_running == 0 && stats.num_waiting == 0, "sequences are lost");
    std::int64_t received = 0;
    for (const auto& [id, record] : records) {
      received += static_cast<std::int64_t>(record.received.size());
      check_record(id, record);
    }
    require(stats.generated_tokens == received, "generated_tokens differs from the tokens received");
  }

  // What the choice generates when it is alone.
  std::vector<TokenId> expected(const Record& record, FinishReason* reason) const {
    const auto limit = static_cast<std::size_t>(std::min(scheduler.options().max_context, scheduler.max_pool_tokens() + 1));
    std::vector<TokenId> generated;
    std::uint64_t hash = prefix_hash(record.spec, record.spec.prompt);
    *reason = FinishReason::kLength;
    while (static_cast<int>(generated.size()) < record.spec.max_tokens && record.spec.prompt.size() + generated.size() < limit) {
      const TokenId token = alter(record, sample(mix(hash, 0), record.choice));
      if (token < 0) {
        *reason = FinishReason::kError;
        break;
      }
      generated.push_back(token);
      hash = mix(hash, static_cast<std::uint64_t>(token));
      if (std::count(record.spec.stop_token_ids.begin(), record.spec.stop_token_ids.end(), token) > 0) {
        *reason = FinishReason::kStop;
        break;
      }
    }
    return generated;
  }

 private:
  static constexpr std::uint64_t kPoison = 0;

  static std::uint64_t prefix_hash(const SequenceSpec& spec, std::span<const TokenId> tokens) {
    std::uint64_t hash = spec.salt.size() + 17;
    for (const char c : spec.salt) hash = mix(hash, static_cast<std::uint64_t>(c));
    for (const TokenId token : tokens) hash = mix(hash, static_cast<std::uint64_t>(token));
    return hash;
  }

  static TokenId sample(std::uint64_t content, int choice) {
    return static_cast<TokenId>(mix(content, static_cast<std::uint64_t>(choice) + 99) % kVocabulary);
  }

  std::set<SequenceId> running() const {
    std::set<SequenceId> ids;
    for (const auto& [id, record] : records) {
      const Sequence* sequence = scheduler.find(id);
      if (sequence != nullptr && sequence->state() == SequenceState::kRunning) ids.insert(id);
    }
    return ids;
  }

  void check_record(SequenceId id, const Record& record) const {
    const std::string name = "sequence " + std::to_string(id);
    require(record.finish_reason != FinishReason::kNone, name + " has not ended");
    FinishReason reason{};
    const std::vector<TokenId> tokens = expected(record, &reason);
    if (record.finish_reason == FinishReason::kCancelled || record.finish_reason == FinishReason::kDeadline) {
      require(
          record.received.size() <= tokens.size() && std::equal(record.received.begin(), record.received.end(), tokens.begin()),
          name + ": tokens differ before it was cancelled");
    } else {
      require(record.finish_reason == reason, name + " ended for another reason than alone");
      require(record.received == tokens, name + ": tokens differ from those alone");
    }
  }

  void check_admitted(const std::set<SequenceId>& running_before) const {
    const std::set<SequenceId> running_now = running();
    for (const SequenceId id : running_now) {
      if (running_before.contains(id)) continue;
      for (const SequenceId victim : running_before) {
        if (running_now.contains(victim) || scheduler.find(victim) == nullptr) continue;
        require(records.at(id).spec.priority < records.at(victim).spec.priority, "admitted in a step that preempted");
      }
    }
  }

  void check_prefill_limit(const std::set<SequenceId>& running_before) const {
    bool any_decodes = false;
    int num_prefill = 0;
    for (const ScheduledSequence& entry : plan.entries) {
      any_decodes = any_decodes || (running_before.contains(entry.sequence->id()) && entry.sequence->num_missing_tokens() == 1);
      num_prefill += entry.num_tokens > 1 ? entry.num_tokens : 0;
    }
    require(!any_decodes || num_prefill <= prefill_limit, "prefill beyond its limit");
  }

  void check_plan(bool has_preempted) const {
    const SchedulerOptions& options = scheduler.options();
    int num_tokens = 0;
    std::set<const Sequence*> planned;
    for (std::size_t i = 0; i < plan.entries.size(); ++i) {
      const ScheduledSequence& entry = plan.entries[i];
      require(planned.insert(entry.sequence).second, "a sequence is planned twice");
      require(entry.num_tokens > 0, "0 tokens are planned");
      require(entry.first_position == entry.sequence->num_computed_tokens(), "first_position is not the first missing token");
      require(entry.samples == (entry.num_tokens == entry.sequence->num_missing_tokens()), "samples is wrong");
      require((static_cast<int>(i) < plan.num_decode) == (entry.num_tokens == 1), "decode rows do not come first");
      num_tokens += entry.num_tokens;
    }
    require(num_tokens == plan.num_tokens && num_tokens <= options.max_batched_tokens, "token budget");
    if (allow_empty_plan) return;
    const auto num_next_tokens = std::count_if(plan.entries.begin(), plan.entries.end(), [](const ScheduledSequence& entry) {
      return entry.num_tokens == 1 && entry.samples;
    });
    int num_alive = 0;
    for (const auto& [id, record] : records) {
      const Sequence* sequence = scheduler.find(id);
      num_alive += sequence != nullptr ? 1 : 0;
      if (sequence == nullptr || sequence->state() == SequenceState::kWaiting) continue;
      if (sequence->num_missing_tokens() == 1) {  // prompts get one token at least
        require(planned.contains(sequence) || num_next_tokens >= options.max_batched_tokens - 1, "a running stream was skipped");
      } else {  // what was kept for a stream that was preempted later is lost
        const bool is_held_back = prefill_limit != Scheduler::kNoLimit || has_preempted;
        require(planned.contains(sequence) || num_tokens == options.max_batched_tokens || is_held_back,
                "a running prompt was skipped");
      }
    }
    require(num_alive == 0 || num_tokens > 0, "nothing advances");
  }

  std::vector<TokenId> execute(const StepPlan& current) {
    const auto block_size = scheduler.options().block_size;
    std::set<BlockId> copied_to;
    for (const BlockCopy& copy : current.copies) {
      require(copy.from != kNullBlock && copy.to != kNullBlock && copied_to.insert(copy.to).second, "bad copy");
      require(!copied_to.contains(copy.from) && scheduler.allocator().num_owners(copy.to) == 1, "copies depend on their order");
      std::copy_n(slots_.begin() + std::ptrdiff_t{copy.from} * block_size, block_size,
                  slots_.begin() + std::ptrdiff_t{copy.to} * block_size);
    }
    build_batch(current, batch_);
    require(batch_.num_tokens == static_cast<int>(batch_.token_ids.size()), "T");
    std::set<std::int64_t> written;
    for (std::size_t s = 0; s < current.entries.size(); ++s) write(current.entries[s], s, written);
    for (std::size_t s = 0; s < current.entries.size(); ++s) read(current.entries[s], s);
    std::vector<TokenId> sampled;
    for (const LogitRow& logit : batch_.logits) {
      if (!logit.samples) continue;
      const Sequence& sequence = *current.entries[static_cast<std::size_t>(logit.entry)].sequence;
      const std::int64_t slot = batch_.groups[0].slots[static_cast<std::size_t>(logit.row)];
      sampled.push_back(alter(records.at(sequence.id()), sample(slots_[static_cast<std::size_t>(slot)], sequence.choice())));
    }
    return sampled;
  }

  void write(const ScheduledSequence& entry, std::size_t s, std::set<std::int64_t>& written) {
    const Sequence& sequence = *entry.sequence;
    Record& record = records.at(sequence.id());
    record.num_computed += entry.num_tokens;
    ++record.num_entries;
    for (int i = 0; i < entry.num_tokens; ++i) {
      const auto row = static_cast<std::size_t>(batch_.q_indptr[s] + i);
      const int position = entry.first_position + i;
      require(batch_.positions[row] == position, "position");
      require(batch_.token_ids[row] == sequence.tokens()[static_cast<std::size_t>(position)], "token");
      const std::uint64_t hash = prefix_hash(record.spec, sequence.tokens().first(static_cast<std::size_t>(position) + 1));
      for (std::size_t g = 0; g < groups_.size(); ++g) {
        const std::int64_t slot = batch_.groups[g].slots[row];
        const auto block = static_cast<BlockId>(slot / scheduler.options().block_size);
        require(block != kNullBlock && written.insert(slot).second, "a slot is written twice, or in block 0");
        require(scheduler.allocator().num_owners(block) == 1 && !scheduler.allocator().is_published(block),
                "a shared or published block is written");
        slots_[static_cast<std::size_t>(slot)] = mix(hash, g);
      }
    }
  }

  void read(const ScheduledSequence& entry, std::size_t s) const {
    const int block_size = scheduler.options().block_size;
    const int kv_len = entry.first_position + entry.num_tokens;
    require(batch_.kv_lens[s] == kv_len, "kv_len");
    const Record& record = records.at(entry.sequence->id());
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const int window = groups_[g].window;
      const int first_seen = window == 0 ? 0 : std::max(0, entry.first_position - window + 1);
      const HostBatchGroup& group = batch_.groups[g];
      const int num_pages = group.page_indptr[s + 1] - group.page_indptr[s];
      require(num_pages * block_size >= kv_len && (num_pages - 1) * block_size < kv_len, "number of pages");
      std::uint64_t hash = prefix_hash(record.spec, {});
      for (int position = 0; position < kv_len; ++position) {
        hash = mix(hash, static_cast<std::uint64_t>(entry.sequence->tokens()[static_cast<std::size_t>(position)]));
        if (position < first_seen) continue;
        const BlockId block = group.page_indices[static_cast<std::size_t>(group.page_indptr[s] + position / block_size)];
        require(block != kNullBlock, "a block inside the window was given up");
        const auto slot = static_cast<std::size_t>(std::int64_t{block} * block_size + position % block_size);
        require(slots_[slot] == mix(hash, g), "position " + std::to_string(position) + " of sequence " +
                                                  std::to_string(entry.sequence->id()) + " holds something else");
      }
    }
  }

  void take_events() {
    for (const SequenceEvent& event : events) {
      Record& record = records.at(event.id);
      require(record.finish_reason == FinishReason::kNone, "an event after the last one");
      if (event.token >= 0) record.received.push_back(event.token);
      record.finish_reason = event.finish_reason;
      require(event.completion_tokens == static_cast<int>(record.received.size()), "completion_tokens");
      require(event.prompt_tokens == static_cast<int>(record.spec.prompt.size()), "prompt_tokens");
      if (event.token < 0) continue;
      if (record.cached_tokens < 0) record.cached_tokens = event.cached_tokens;
      require(event.cached_tokens >= 0 && event.cached_tokens < event.prompt_tokens, "cached_tokens out of range");
      require(event.cached_tokens == record.cached_tokens, "cached_tokens changes");
    }
    for (const SequenceEvent& event : events) {
      require((event.finish_reason != FinishReason::kNone) == (scheduler.find(event.id) == nullptr), "finished, but not gone");
    }
  }

  std::vector<KvGroupSpec> groups_;
  std::vector<std::uint64_t> slots_;  // [N * B]
  HostBatch batch_;
};

}  // namespace quire::testing
