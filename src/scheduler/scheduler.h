// Scheduler: continuous batching over a paged KV cache, as two functions. schedule() decides which sequence computes how many
// tokens in the next step and grows page tables to fit; commit() takes the step's sampled tokens, publishes what was written,
// and ends what is finished. It owns the sequences and the blocks; it never sees a tensor, a thread or a clock.
//
// The policy: (0) at most one running sequence makes place for a waiting one of strictly higher priority when max_running is
// reached; (1) running sequences, by priority and arrival, each get min(missing, budget) tokens, where every decode has one of
// the budget that no prompt takes, and the caller may limit prefill further; (2) where blocks are missing the last running
// sequence is preempted and later recomputed, so the first always advances; (3) as long as nothing had to be preempted for
// blocks, waiting sequences in order adopt their cached prefix and take what budget is left, up to the first that does not fit:
// those of strictly higher priority than a running prompt before it, the others last; (4) submit() has refused what could never
// run alone. There is no ageing: prompts of lower priority wait while higher keeps coming, those half computed with the blocks
// that they hold.
//
// Not thread-safe. Between schedule() and commit() only submit(), finish() and the const functions may be called.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "scheduler/sequence.h"
#include "scheduler/step_plan.h"

namespace quire {

struct SchedulerOptions {
  int block_size = 16;           // tokens per KV block
  int num_blocks = 0;            // N of the KV pool, reserved block 0 included
  int max_batched_tokens = 512;  // T at most
  int max_running = 256;         // sequences holding blocks
  int max_context = 4096;        // tokens of prompt and answer together
  bool prefix_cache = true;      // publish and reuse blocks
  std::uint64_t model_id = 0;    // part of every block's key
};

// One token of a sequence, its end, or both.
struct SequenceEvent {
  SequenceId id = 0;
  TokenId token = -1;                                // -1: none
  FinishReason finish_reason = FinishReason::kNone;  // kNone: goes on. Else this is the last event and the sequence is gone
  int prompt_tokens = 0;
  int completion_tokens = 0;  // up to and with this event; a stop token counts
  int cached_tokens = 0;      // of the prompt, at the first admission
};

// A snapshot. Blocks: free + cached + held = total.
struct SchedulerStats {
  int num_waiting = 0;
  int num_running = 0;
  std::int64_t total_blocks = 0;  // without block 0
  std::int64_t free_blocks = 0;
  std::int64_t cached_blocks = 0;
  std::int64_t held_blocks = 0;
  std::int64_t held_token_slots = 0;     // slots in held blocks
  std::int64_t written_token_slots = 0;  // of these, slots with a computed token; a shared block counts once
  std::int64_t num_steps = 0;            // commits of plans with tokens
  std::int64_t num_preemptions = 0;
  std::int64_t prefill_tokens = 0;    // computed and not sampled from a decode row: prompts, recomputation included
  std::int64_t generated_tokens = 0;  // delivered in events
  std::int64_t cached_tokens = 0;     // prompt tokens taken from the prefix cache at first admissions
  std::int64_t num_look_ups = 0;      // of waiting sequences in the prefix cache, those that did not fit too
};

class Scheduler final {
 public:
  // One entry of `groups` per KV group. Throws Error(kInvalidArgument) naming the option that is wrong.
  Scheduler(const SchedulerOptions& options, std::vector<KvGroupSpec> groups);
  ~Scheduler();

  // Queues num_choices sequences, all or none, and returns the first id; the others follow it without gap. max_tokens is clamped,
  // so that prompt and answer fit the context, and one sequence alone fits the pool (then it ends with kLength). Throws
  // Error(kInvalidArgument) naming the field: an empty prompt, one of max_context tokens or more, or one the pool cannot hold.
  SequenceId submit(SequenceSpec spec);

  // Throws what submit() would throw for a spec of these sizes, and changes nothing. Thread-safe: it reads what never changes.
  void check_submit(std::size_t num_prompt_tokens, int max_tokens, int num_choices) const;

  // What the next submit() will return.
  SequenceId next_id() const { return next_id_; }

  // Ends a sequence; its last event comes with the next commit(). Allowed between schedule() and commit() too: then its blocks
  // stay until the commit, its result is dropped and nothing of it is published. Allocates nothing. False: unknown or finished.
  bool finish(SequenceId id, FinishReason reason);

  // Forgets every sequence at once, with no event, and takes back every block: for after an exception from schedule(), commit()
  // or the step between them.
  void abandon();

  // Decides the next step. The plan is valid until its commit, which must follow before the next schedule. It is empty only if no
  // sequence is left (or an allocation was made to fail); even then commit() delivers the events of finish() and of deadlines.
  // In a step in which running sequences decode, those that compute more than one token (prompts, recomputation) and those newly
  // admitted get `prefill_limit` tokens together, and no more than the decodes leave of max_batched_tokens (one at the least, if
  // the first sequence is among them). REQUIRES: prefill_limit >= 1.
  const StepPlan& schedule(std::int64_t now_us, int prefill_limit = kNoLimit);
  static constexpr int kNoLimit = std::numeric_limits<int>::max();

  // The step is done. `sampled` has one token per entry with `samples`, in entry order; -1: sampling failed, the sequence ends
  // with kError. Appends to `events`: first the ends since the last commit, then the step's in entry order. To give a step up
  // (a device error), finish() its sequences with kError, then commit with -1 everywhere; or abandon() all.
  void commit(const StepPlan& plan, std::span<const TokenId> sampled, std::vector<SequenceEvent>& events);

  // True while a sequence is unfinished, or an end is yet to be delivered.
  bool has_work() const { return !sequences_.empty() || !pending_events_.empty(); }

  const Sequence* find(SequenceId id) const;  // nullptr: unknown, or gone
  SchedulerStats stats() const;               // O(running sequences)
  int num_groups() const { return static_cast<int>(groups_.size()); }
  const SchedulerOptions& options() const { return options_; }
  // Tokens that one sequence can have in the pool when it is alone. A sequence may be one token longer: its last has no slot.
  int max_pool_tokens() const { return max_pool_tokens_; }

  // Recounts every reference, list and counter; throws Error(kInternal) on the first contradiction. O(blocks).
  void check_invariants() const;

  const BlockAllocator& allocator() const { return allocator_; }
  BlockAllocator& allocator_for_test() { return allocator_; }  // for its test hooks

 private:
  // Tokens that are left of a step.
  struct Budget {
    int all = 0;
    int prefill = 0;  // of these, for others than decodes
  };

  Budget budget_of_step(int prefill_limit) const;
  void expire(std::int64_t now_us);
  void preempt_for_slot();
  void preempt_last();
  int grow_or_preempt(std::size_t running_index, int num_tokens);
  void plan_sequences(Budget& budget);
  bool admit_waiting(Budget& budget, std::int64_t before_priority);
  int admit(Sequence& sequence, int budget);
  int fitting_tokens(const Sequence& sequence, int num_tokens) const;
  void add_entry(Sequence& sequence, int num_tokens);
  void commit_entry(const ScheduledSequence& entry, TokenId token, std::vector<SequenceEvent>& events);
  std::int64_t num_blocks_alone(int num_tokens) const;
  void check_sequence(const Sequence& sequence, std::vector<int>& num_owners, std::int64_t& num_written) const;

  SchedulerOptions options_;
  std::vector<KvGroupSpec> groups_;
  BlockAllocator allocator_;
  int max_pool_tokens_ = 0;
  SequenceId next_id_ = 1;
  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  std::vector<Sequence*> running_;  // by runs_before
  std::vector<Sequence*> waiting_;  // by runs_before
  StepPlan plan_;
  bool plan_in_flight_ = false;
  std::vector<ScheduledSequence> prefill_entries_;  // of the plan being made
  PrefixMatch match_;
  std::vector<SequenceEvent> pending_events_;  // has room for one more of each sequence
  std::int64_t next_deadline_us_;              // no deadline is earlier
  SchedulerStats stats_;                       // the counters; the rest is derived
};

}  // namespace quire
