// Sequence: the scheduler's record of one choice of one request: its tokens, how many of them are in the KV cache, and the page
// tables that say where. A sequence has num_tokens(); of these num_computed_tokens() are computed; a step moves the second
// towards the first. One missing token is what others call decode, several are prefill: there is no other phase.
// Readers (batch builder, sampler) use the const part; only Scheduler::schedule and commit change one. Knows nothing of shapes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/page_table.h"
#include "quire/request.h"
#include "scheduler/step_plan.h"

namespace quire {

using SequenceId = std::uint64_t;  // given by the scheduler in order of arrival, never 0, never used twice

// What is asked of the scheduler. Sampling is not its business.
struct SequenceSpec {
  std::vector<TokenId> prompt{};              // at least one token
  int max_tokens = 1;                         // at most this many generated; clamped to what context and KV pool can hold
  std::vector<TokenId> stop_token_ids{};      // each ends the sequence with kStop; submit() sorts them
  int priority = 0;                           // lower runs earlier; equal: by arrival
  std::string salt{};                         // prefixes are shared only between equal salts
  std::optional<std::int64_t> deadline_us{};  // on the clock of Scheduler::schedule; from then on it ends with kDeadline
  bool use_prefix_cache = true;               // false: every prompt token is computed (prompt logprobs)
  bool prompt_logprobs = false;               // choice 0 lists its prompt rows; turns use_prefix_cache off
  int num_choices = 1;                        // sequences made at once that share one computation of the prompt
};

// The longest cached prefix that every KV group can serve.
struct PrefixMatch {
  int num_tokens = 0;                        // a multiple of the block size, less than the sequence's tokens
  std::vector<std::vector<BlockId>> blocks;  // per group [num_tokens / B]; null where the group's window does not reach
};

class Sequence;

// The choices of one request. They share the spec, and one computation of the prompt.
struct Siblings {
  SequenceSpec spec;
  std::vector<Sequence*> members;  // those not destroyed yet
};

enum class SequenceState : std::uint8_t {
  kWaiting,  // holds no block
  kRunning,  // holds blocks; may be in the plan
};

class Sequence {
 public:
  // `groups` and `allocator` outlive the sequence. `max_total_tokens` bounds prompt and answer together.
  struct Origin {
    SequenceId id = 0;
    int choice = 0;
    int max_total_tokens = 0;
    std::uint64_t model_id = 0;
  };
  Sequence(const Origin& origin, std::shared_ptr<Siblings> siblings, std::span<const KvGroupSpec> groups,
           BlockAllocator& allocator);
  ~Sequence();
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  SequenceId id() const { return id_; }
  int choice() const { return choice_; }  // 0 to num_choices - 1
  const SequenceSpec& spec() const { return siblings_->spec; }
  std::span<const TokenId> tokens() const { return tokens_; }  // prompt, then generated
  std::span<const TokenId> generated() const { return tokens().subspan(spec().prompt.size()); }
  int num_tokens() const { return static_cast<int>(tokens_.size()); }
  int num_prompt_tokens() const { return static_cast<int>(siblings_->spec.prompt.size()); }
  int num_generated_tokens() const { return num_tokens() - num_prompt_tokens(); }
  int num_computed_tokens() const { return num_computed_; }
  int num_missing_tokens() const { return num_tokens() - num_computed_; }
  int cached_tokens() const { return cached_tokens_ < 0 ? 0 : cached_tokens_; }  // at the first admission
  bool was_admitted() const { return cached_tokens_ >= 0; }
  bool wants_prompt_logprobs() const { return spec().prompt_logprobs && choice_ == 0; }
  int num_scored_tokens() const { return num_scored_; }  // their rows have been computed once, if recomputed since or not
  FinishReason finish_reason() const { return finish_reason_; }
  SequenceState state() const { return state_; }
  int num_groups() const { return static_cast<int>(groups_.size()); }
  const PageTable& page_table(int group) const { return groups_[static_cast<std::size_t>(group)].table; }
  const Siblings& siblings() const { return *siblings_; }

  // Everything below is for the scheduler.

  // True if `a` is served before `b`: by priority, then arrival. A total order.
  static bool runs_before(const Sequence* a, const Sequence* b);

  // Fills `match` with the longest prefix that all groups can serve and that leaves at least one token to compute.
  void match_prefix(const BlockAllocator& allocator, PrefixMatch& match);

  // Blocks that grow(num_tokens) would allocate, over all groups.
  int num_blocks_to_grow(int num_tokens) const;

  // Waiting to running, with a cached prefix (possibly empty), and room for the first `num_tokens` tokens. False, no change:
  // a block was missing.
  bool admit(const PrefixMatch& match, int num_tokens);

  // Waiting to running: takes over the prompt of a running sibling, save its last token, which gives this one its own logits.
  // Appends copies of partial blocks. False, no change: a block was missing. REQUIRES: can_fork(source).
  bool fork(const Sequence& source, std::vector<BlockCopy>& copies);
  bool can_fork(const Sequence& source) const;

  // The sibling this one can fork from now, or nullptr.
  const Sequence* fork_source() const;

  // True while a running sibling computes the prompt that this one will then share.
  bool waits_for_sibling() const;

  // Room for the first `num_tokens` tokens in every group, or false and no change.
  bool grow(int num_tokens);

  // Running to waiting: gives up all blocks, keeps all tokens.
  void preempt();

  // The step that computed the next `num_tokens` tokens has completed. Publishes filled blocks if asked, then releases those that
  // have left their window.
  void advance(int num_tokens, bool publish);

  // Appends a sampled token; sets the finish reason if it was the last.
  void append(TokenId token);

  void set_finished(FinishReason reason) { finish_reason_ = reason; }
  bool in_flight() const { return in_flight_; }  // in a plan not committed yet
  void set_in_flight(bool in_flight) { in_flight_ = in_flight; }

 private:
  struct Group {
    PageTable table;
    BlockKeyChain keys;
  };

  void clear_tables();

  SequenceId id_;
  int choice_;
  int max_total_tokens_;
  int num_computed_ = 0;
  int num_scored_ = 0;      // the most that num_computed_ has been
  int cached_tokens_ = -1;  // -1: not admitted yet
  SequenceState state_ = SequenceState::kWaiting;
  FinishReason finish_reason_ = FinishReason::kNone;
  bool in_flight_ = false;
  std::shared_ptr<Siblings> siblings_;
  std::vector<TokenId> tokens_;
  std::vector<Group> groups_;
};

}  // namespace quire
