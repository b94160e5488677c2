#include "scheduler/scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/check.h"
#include "core/math.h"

namespace quire {

namespace {

constexpr std::int64_t kNoDeadline = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kAnyPriority = std::numeric_limits<std::int64_t>::max();  // beyond that of any sequence

const SchedulerOptions& checked(const SchedulerOptions& options, const std::vector<KvGroupSpec>& groups) {
  const auto at_least = [](const char* name, int value, int minimum) {
    if (value < minimum) fail(ErrorCode::kInvalidArgument, "{}: {}, must be at least {}", name, value, minimum);
  };
  at_least("block_size", options.block_size, 1);
  at_least("num_blocks", options.num_blocks, 2);
  at_least("max_batched_tokens", options.max_batched_tokens, 1);
  at_least("max_running", options.max_running, 1);
  at_least("max_context", options.max_context, 2);
  at_least("number of KV groups", static_cast<int>(groups.size()), 1);
  for (const KvGroupSpec& group : groups) at_least("window", group.window, 0);
  return options;
}

void insert_in_order(std::vector<Sequence*>& sequences, Sequence* sequence) {
  sequences.insert(std::upper_bound(sequences.begin(), sequences.end(), sequence, Sequence::runs_before), sequence);
}

void erase_in_order(std::vector<Sequence*>& sequences, const Sequence* sequence) {
  const auto found = std::lower_bound(sequences.begin(), sequences.end(), sequence, Sequence::runs_before);
  QUIRE_CHECK_MSG(found != sequences.end() && *found == sequence, "sequence {} is in no queue", sequence->id());
  sequences.erase(found);
}

// Room for `count` more elements, at the amortised cost of push_back.
template <typename T>
void reserve_more(std::vector<T>& values, std::size_t count) {
  const std::size_t needed = values.size() + count;
  if (needed > values.capacity()) values.reserve(std::max(needed, 2 * values.capacity()));
}

SequenceEvent event_of(const Sequence& sequence, TokenId token) {
  return {.id = sequence.id(),
          .token = token,
          .finish_reason = sequence.finish_reason(),
          .prompt_tokens = sequence.num_prompt_tokens(),
          .completion_tokens = sequence.num_generated_tokens(),
          .cached_tokens = sequence.cached_tokens()};
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options, std::vector<KvGroupSpec> groups)
    : options_(checked(options, groups)),
      groups_(std::move(groups)),
      allocator_(options_.num_blocks, options_.block_size),
      next_deadline_us_(kNoDeadline) {
  int low = 0;
  for (int high = options_.max_context; low < high;) {
    const int middle = high - (high - low) / 2;
    if (num_blocks_alone(middle) <= allocator_.num_blocks() - 1) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  max_pool_tokens_ = low;
  if (low == 0)
    fail(ErrorCode::kInvalidArgument, "num_blocks: {}, too few for {} KV groups", options_.num_blocks, groups_.size());
}

Scheduler::~Scheduler() = default;

// Blocks that suffice for a lone sequence to hold and extend num_tokens tokens, one by one, at any alignment of its windows.
std::int64_t Scheduler::num_blocks_alone(int num_tokens) const {
  const std::int64_t num_full = ceil_div<std::int64_t>(num_tokens, options_.block_size);
  std::int64_t count = 0;
  for (const KvGroupSpec& group : groups_) {
    const std::int64_t num_seen =
        group.window == 0 ? num_full : ceil_div<std::int64_t>(group.window - 1, options_.block_size) + 1;
    count += std::min(num_full, num_seen);
  }
  return count;
}

void Scheduler::check_submit(std::size_t num_prompt, int max_tokens, int num_choices) const {
  if (num_prompt == 0) fail(ErrorCode::kInvalidArgument, "prompt: 0 tokens, at least 1 is needed");
  if (num_prompt >= static_cast<std::size_t>(options_.max_context)) {
    fail(ErrorCode::kInvalidArgument, "prompt: {} tokens, but the context holds {} with at least one of the answer", num_prompt,
         options_.max_context);
  }
  if (num_prompt > static_cast<std::size_t>(max_pool_tokens_)) {
    fail(ErrorCode::kInvalidArgument, "prompt: {} tokens, but the KV pool of {} blocks holds {}", num_prompt,
         options_.num_blocks - 1, max_pool_tokens_);
  }
  if (max_tokens < 1) fail(ErrorCode::kInvalidArgument, "max_tokens: {}, must be at least 1", max_tokens);
  if (num_choices < 1) fail(ErrorCode::kInvalidArgument, "num_choices: {}, must be at least 1", num_choices);
}

SequenceId Scheduler::submit(SequenceSpec spec) {
  check_submit(spec.prompt.size(), spec.max_tokens, spec.num_choices);
  std::sort(spec.stop_token_ids.begin(), spec.stop_token_ids.end());
  if (spec.prompt_logprobs) spec.use_prefix_cache = false;
  const std::int64_t deadline_us = spec.deadline_us.value_or(kNoDeadline);

  const int num_prompt = static_cast<int>(spec.prompt.size());
  const int max_total = std::min(options_.max_context, max_pool_tokens_ + 1);
  const int num_choices = spec.num_choices;
  Sequence::Origin origin{.id = next_id_,
                          .choice = 0,
                          .max_total_tokens = num_prompt + std::min(spec.max_tokens, max_total - num_prompt),
                          .model_id = options_.model_id};
  const auto siblings = std::make_shared<Siblings>();
  siblings->spec = std::move(spec);
  decltype(sequences_) made;  // all or none: what may throw does so before anything is queued
  for (; origin.choice < num_choices; ++origin.choice, ++origin.id) {
    made.emplace(origin.id, std::make_unique<Sequence>(origin, siblings, groups_, allocator_));
  }
  sequences_.reserve(sequences_.size() + made.size());
  reserve_more(waiting_, made.size());
  reserve_more(pending_events_, sequences_.size() + made.size());
  for (const auto& [id, sequence] : made) insert_in_order(waiting_, sequence.get());
  sequences_.merge(made);
  next_deadline_us_ = std::min(next_deadline_us_, deadline_us);
  return std::exchange(next_id_, origin.id);
}

bool Scheduler::finish(SequenceId id, FinishReason reason) {
  QUIRE_CHECK(reason != FinishReason::kNone);
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || found->second->finish_reason() != FinishReason::kNone) return false;
  Sequence& sequence = *found->second;
  sequence.set_finished(reason);
  if (sequence.in_flight()) return true;  // its blocks are being written: commit() lets go of them
  erase_in_order(sequence.state() == SequenceState::kRunning ? running_ : waiting_, &sequence);
  pending_events_.push_back(event_of(sequence, -1));  // submit() has reserved its place
  sequences_.erase(found);
  return true;
}

void Scheduler::abandon() {
  plan_ = {};
  plan_in_flight_ = false;
  prefill_entries_.clear();
  running_.clear();
  waiting_.clear();
  pending_events_.clear();
  sequences_.clear();  // and with them their page tables, which release the blocks
}

void Scheduler::expire(std::int64_t now_us) {
  if (now_us < next_deadline_us_) return;
  next_deadline_us_ = kNoDeadline;
  std::vector<SequenceId> expired;
  for (const auto* queue : {&running_, &waiting_}) {
    for (const Sequence* sequence : *queue) {
      const std::int64_t deadline_us = sequence->spec().deadline_us.value_or(kNoDeadline);
      if (deadline_us <= now_us) {
        expired.push_back(sequence->id());
      } else {
        next_deadline_us_ = std::min(next_deadline_us_, deadline_us);
      }
    }
  }
  for (const SequenceId id : expired) finish(id, FinishReason::kDeadline);
}

const StepPlan& Scheduler::schedule(std::int64_t now_us, int prefill_limit) {
  QUIRE_CHECK_MSG(!plan_in_flight_, "schedule() before the commit of the plan before");
  QUIRE_CHECK_MSG(prefill_limit >= 1, "a limit of {} tokens", prefill_limit);
  plan_.entries.clear();
  plan_.copies.clear();
  plan_.num_tokens = 0;
  prefill_entries_.clear();

  expire(now_us);
  preempt_for_slot();
  Budget budget = budget_of_step(prefill_limit);
  plan_sequences(budget);

  plan_.num_decode = static_cast<int>(plan_.entries.size());
  plan_.entries.insert(plan_.entries.end(), prefill_entries_.begin(), prefill_entries_.end());
  plan_in_flight_ = true;
  return plan_;
}

// Every decode has its token, whatever stands before it: a stream that is answered does not stop for a prompt.
Scheduler::Budget Scheduler::budget_of_step(int prefill_limit) const {
  const int all = options_.max_batched_tokens;
  const auto num_decodes = static_cast<int>(std::count_if(
      running_.begin(), running_.end(), [](const Sequence* sequence) { return sequence->num_missing_tokens() == 1; }));
  if (num_decodes == 0) return {all, all};  // nobody waits for a next token
  return {all, std::min(prefill_limit, std::max(all - num_decodes, 1))};
}

void Scheduler::add_entry(Sequence& sequence, int num_tokens) {
  const bool samples = num_tokens == sequence.num_missing_tokens();
  auto& entries = num_tokens == 1 ? plan_.entries : prefill_entries_;
  entries.push_back({&sequence, sequence.num_computed_tokens(), num_tokens, samples});
  plan_.num_tokens += num_tokens;
  sequence.set_in_flight(true);
}

// One per step is enough: a second urgent sequence is served in the next. It happens before any planning, so that the victim is
// not in the plan.
void Scheduler::preempt_for_slot() {
  if (static_cast<int>(running_.size()) < options_.max_running) return;
  const int victim_priority = running_.back()->spec().priority;
  for (const Sequence* sequence : waiting_) {
    if (sequence->spec().priority >= victim_priority) return;
    if (sequence->waits_for_sibling()) continue;
    preempt_last();
    return;
  }
}

void Scheduler::preempt_last() {
  Sequence* victim = running_.back();
  running_.pop_back();
  victim->preempt();
  insert_in_order(waiting_, victim);
  ++stats_.num_preemptions;
}

// Once a sequence was preempted nobody is admitted any more in this step, or the victim would come back at once. One that was
// admitted before stands in the queue before the place that is planned, where there are no victims.
void Scheduler::plan_sequences(Budget& budget) {
  bool may_admit = true;
  for (std::size_t i = 0; i < running_.size() && budget.all > 0; ++i) {
    Sequence& sequence = *running_[i];
    const int num_missing = sequence.num_missing_tokens();
    const bool decodes = num_missing == 1;
    if (!decodes && may_admit) {
      const std::size_t num_before = running_.size();
      may_admit = admit_waiting(budget, sequence.spec().priority);
      i += running_.size() - num_before;
    }
    const int most = decodes ? budget.all : std::min(budget.all, budget.prefill);
    if (most == 0) continue;  // decodes behind it have their own
    const std::size_t num_running = running_.size();
    const int num_tokens = grow_or_preempt(i, std::min(num_missing, most));
    may_admit = may_admit && running_.size() == num_running;
    if (num_tokens == 0) break;
    add_entry(sequence, num_tokens);
    budget.all -= num_tokens;
    if (!decodes) budget.prefill -= num_tokens;
  }
  if (may_admit) (void)admit_waiting(budget, kAnyPriority);
}

// Returns the tokens that running_[running_index] now has room for; 0: none, and it may have been preempted itself.
int Scheduler::grow_or_preempt(std::size_t running_index, int num_tokens) {
  Sequence& sequence = *running_[running_index];
  const int first = sequence.num_computed_tokens();
  while (num_tokens > 0 && !sequence.grow(first + num_tokens)) {
    if (running_.size() > 1) {
      preempt_last();
      if (running_.size() == running_index) return 0;  // it was the last itself
    } else {
      // Alone with a window, a shorter chunk needs fewer blocks; one token always fits, by max_pool_tokens().
      num_tokens = (first + num_tokens - 1) / options_.block_size * options_.block_size - first;
    }
  }
  return std::max(num_tokens, 0);
}

// Those of a priority before `before_priority`, up to the first that does not fit. False: nor would it later in this step, in
// which nothing is released. Where a group has a window it might, for a shorter chunk needs fewer blocks there.
bool Scheduler::admit_waiting(Budget& budget, std::int64_t before_priority) {
  bool may_admit_more = true;
  std::size_t num_kept = 0;
  std::size_t next = 0;
  const Siblings* held_back = nullptr;
  const auto num_left = [&] { return std::min(budget.prefill, budget.all); };
  for (; next < waiting_.size() && num_left() > 0 && static_cast<int>(running_.size()) < options_.max_running; ++next) {
    Sequence& sequence = *waiting_[next];
    if (sequence.spec().priority >= before_priority) break;
    if ((held_back == &sequence.siblings() && sequence.num_generated_tokens() == 0) || sequence.waits_for_sibling()) {
      held_back = &sequence.siblings();
      waiting_[num_kept++] = &sequence;
      continue;
    }
    const int num_tokens = admit(sequence, num_left());
    if (num_tokens == 0) {
      may_admit_more = std::any_of(groups_.begin(), groups_.end(), [](const KvGroupSpec& group) { return group.window != 0; });
      break;
    }
    insert_in_order(running_, &sequence);
    add_entry(sequence, num_tokens);
    budget.all -= num_tokens;
    budget.prefill -= num_tokens;
  }
  waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(num_kept), waiting_.begin() + static_cast<std::ptrdiff_t>(next));
  return may_admit_more;
}

// The tokens that the sequence computes in this step, or 0 and no change: it does not fit. The look-up is not kept for the next
// step, for any block published or forgotten changes it: it takes 3 us for 4,096 tokens, 0.1 ms for 131,072.
int Scheduler::admit(Sequence& sequence, int budget) {
  const bool is_first = !sequence.was_admitted();
  const Sequence* source = sequence.fork_source();
  if (source != nullptr) return sequence.fork(*source, plan_.copies) ? 1 : 0;

  if (allocator_.num_available() < num_groups()) return 0;  // the block of the last token is never a hit, in any group
  match_.num_tokens = 0;
  if (options_.prefix_cache && sequence.spec().use_prefix_cache) {
    sequence.match_prefix(allocator_, match_);
    ++stats_.num_look_ups;
  }
  const int num_tokens = fitting_tokens(sequence, std::min(sequence.num_tokens() - match_.num_tokens, budget));
  if (num_tokens == 0 || !sequence.admit(match_, match_.num_tokens + num_tokens)) return 0;
  if (is_first) stats_.cached_tokens += sequence.cached_tokens();
  return num_tokens;
}

// Full groups must have room for all of the sequence's tokens, not just for its first chunk: one that is admitted and then
// preempted half way has computed in vain. When nothing runs, a shorter chunk may fit where the whole does not.
int Scheduler::fitting_tokens(const Sequence& sequence, int num_tokens) const {
  const int first = match_.num_tokens;
  const int block_size = options_.block_size;
  int num_hits_to_take = 0;  // hits without an owner are among the available blocks
  if (first > 0) {
    for (const auto& hits : match_.blocks) {
      num_hits_to_take += static_cast<int>(std::count_if(
          hits.begin(), hits.end(), [&](BlockId id) { return id != kNullBlock && allocator_.num_owners(id) == 0; }));
    }
  }
  while (num_tokens > 0) {
    int num_needed = num_hits_to_take;
    for (const KvGroupSpec& group : groups_) {
      num_needed += ceil_div(group.window == 0 ? sequence.num_tokens() : first + num_tokens, block_size) - first / block_size;
    }
    if (num_needed <= allocator_.num_available()) return num_tokens;
    if (!running_.empty()) return 0;
    num_tokens = (first + num_tokens - 1) / block_size * block_size - first;
  }
  return 0;
}

void Scheduler::commit(const StepPlan& plan, std::span<const TokenId> sampled, std::vector<SequenceEvent>& events) {
  QUIRE_CHECK_MSG(plan_in_flight_ && &plan == &plan_, "commit() of a plan that is not in flight");
  const auto num_samples =
      std::count_if(plan.entries.begin(), plan.entries.end(), [](const auto& entry) { return entry.samples; });
  QUIRE_CHECK_MSG(sampled.size() == static_cast<std::size_t>(num_samples), "{} tokens for {} rows", sampled.size(), num_samples);

  plan_in_flight_ = false;
  stats_.num_steps += plan.num_tokens > 0 ? 1 : 0;
  events.insert(events.end(), pending_events_.begin(), pending_events_.end());
  pending_events_.clear();
  bool any_finished = false;
  auto next_sample = sampled.begin();
  for (const ScheduledSequence& entry : plan.entries) {
    const TokenId token = entry.samples ? *next_sample++ : -1;
    entry.sequence->set_in_flight(false);
    commit_entry(entry, token, events);
    any_finished = any_finished || entry.sequence->finish_reason() != FinishReason::kNone;
  }
  if (!any_finished) return;
  const auto is_finished = [](const Sequence* sequence) { return sequence->finish_reason() != FinishReason::kNone; };
  std::erase_if(running_, is_finished);
  for (const ScheduledSequence& entry : plan.entries) {
    if (is_finished(entry.sequence)) sequences_.erase(entry.sequence->id());
  }
}

void Scheduler::commit_entry(const ScheduledSequence& entry, TokenId token, std::vector<SequenceEvent>& events) {
  Sequence& sequence = *entry.sequence;
  if (sequence.finish_reason() == FinishReason::kNone && entry.samples && token < 0) {
    sequence.set_finished(FinishReason::kError);  // whatever this step wrote is suspect: not published
  }
  if (sequence.finish_reason() != FinishReason::kNone) {
    events.push_back(event_of(sequence, -1));
    return;
  }
  const bool is_decode = entry.num_tokens == 1 && sequence.num_generated_tokens() > 0;
  stats_.prefill_tokens += is_decode ? 0 : entry.num_tokens;
  sequence.advance(entry.num_tokens, options_.prefix_cache);
  if (!entry.samples) return;
  sequence.append(token);
  ++stats_.generated_tokens;
  events.push_back(event_of(sequence, token));
}

const Sequence* Scheduler::find(SequenceId id) const {
  const auto found = sequences_.find(id);
  return found == sequences_.end() ? nullptr : found->second.get();
}

}  // namespace quire
