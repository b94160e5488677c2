// The life of a step. Stages 2 and 7 alone change a Sequence or the allocator; 1, 2, 3 and 7 need no device.
//
//   # | stage    | call                     | in                          | out                          | where
//   1 | submit   | Engine::submit           | Request                     | Sequence, waiting            | host
//   2 | schedule | Scheduler::schedule      | sequences, blocks, budget   | StepPlan; page tables grown  | host
//   3 | build    | build_batch              | StepPlan                    | host arrays                  | host
//   4 | upload   | BatchUploader::upload    | host arrays                 | Batch                        | host to device
//   5 | forward  | Decoder::forward, logits | Batch, KvPool               | logits [R, V]                | device
//   6 | sample   | Backend::sample          | logits, per-row parameters  | R tokens                     | the one wait
//   7 | commit   | Scheduler::commit        | StepPlan, tokens            | SequenceEvents               | host
//   8 | deliver  | return of step()         | SequenceEvents              | TokenEvents                  | host
#include "engine/engine_impl.h"

#include <algorithm>
#include <chrono>

#include "core/check.h"
#include "core/math.h"
#include "engine/current_error.h"

namespace quire {
namespace {

std::int64_t now_us() {
  using std::chrono::duration_cast, std::chrono::microseconds, std::chrono::steady_clock;
  return duration_cast<microseconds>(steady_clock::now().time_since_epoch()).count();
}

// True while it lives.
class Raised {
 public:
  explicit Raised(bool& flag) : flag_(flag) { flag_ = true; }
  ~Raised() { flag_ = false; }
  Raised(const Raised&) = delete;
  Raised& operator=(const Raised&) = delete;

 private:
  bool& flag_;
};

}  // namespace

// ---- 1: submit

// All or nothing: the scheduler comes last, and what was noted before it is taken back if anything throws.
RequestId Engine::Impl::submit(Request request) {
  refuse_within_step("submit");
  check(request);
  const RequestId id = next_request_id_;
  const SequenceId first = scheduler_.next_id();
  const auto count = static_cast<std::size_t>(num_choices(request.sampling));
  SequenceSpec spec = sequence_spec(request);
  const std::uint64_t seed = request.sampling.seed ? *request.sampling.seed : seed_source_();
  auto made = std::make_unique<RequestRecord>(id, std::move(request), tokenizer_, end_ids_, seed, num_samplable());
  RequestRecord& record = *made;
  try {
    records_.emplace(id, std::move(made));
    for (std::size_t i = 0; i < count; ++i) {
      record.choices()[i].sequence = first + i;
      choice_of_.emplace(first + i, ChoiceRef{&record, static_cast<int>(i)});
    }
    scheduler_.submit(std::move(spec));
  } catch (...) {
    for (std::size_t i = 0; i < count; ++i) choice_of_.erase(first + i);
    records_.erase(id);
    throw;
  }
  return next_request_id_++;
}

void Engine::Impl::check(const Request& request) const {
  if (failed_) fail(ErrorCode::kUnavailable, "the engine has failed and accepts no more requests: {}", failure_->what());
  if (draining_) fail(ErrorCode::kUnavailable, "the engine is draining and accepts no more requests");
  if (request.prompt.empty()) fail(ErrorCode::kInvalidArgument, "prompt is empty");
  for (std::size_t i = 0; i < request.prompt.size(); ++i) {
    const TokenId token = request.prompt[i];
    if (token < 0 || token >= model_.config.vocab_size) {
      fail(ErrorCode::kInvalidArgument, "prompt[{}] is token {}, outside the vocabulary [0, {})", i, token,
           model_.config.vocab_size);
    }
  }
  if (request.timeout_us && *request.timeout_us < 0) {
    fail(ErrorCode::kInvalidArgument, "timeout_us is {}, below 0", *request.timeout_us);
  }
  validate_sampling(request.sampling, model_.config.vocab_size);
  scheduler_.check_submit(request.prompt.size(), request.sampling.max_tokens, num_choices(request.sampling));
}

SequenceSpec Engine::Impl::sequence_spec(const Request& request) const {
  const SamplingParams& sampling = request.sampling;
  SequenceSpec spec;
  spec.prompt = request.prompt;
  spec.max_tokens = sampling.max_tokens;
  spec.num_choices = num_choices(sampling);
  spec.stop_token_ids = sampling.stop_token_ids;
  if (!sampling.ignore_eos) {
    spec.stop_token_ids.insert(spec.stop_token_ids.end(), end_ids_.begin(), end_ids_.end());
  }
  std::sort(spec.stop_token_ids.begin(), spec.stop_token_ids.end());
  spec.priority = request.priority;
  spec.salt = request.cache_salt;
  spec.prompt_logprobs = sampling.prompt_logprobs.has_value();
  spec.use_prefix_cache = !spec.prompt_logprobs;
  if (request.timeout_us) spec.deadline_us = checked_add(now_us(), *request.timeout_us);  // beyond the clock: never
  return spec;
}

// ---- 2 to 8: step

std::vector<TokenEvent> Engine::Impl::step() {
  refuse_within_step("step");
  const Raised in_step(in_step_);
  try {
    if (failed_) {
      end_all_with_error();
    } else {
      advance();
    }
  } catch (...) {
    const Error error = current_error();
    if (!failed_) give_up(error);
    throw Error(error);
  }
  return std::exchange(events_, {});
}

void Engine::Impl::advance() {
  sampled_.clear();
  sequence_events_.clear();
  const std::int64_t begin_us = now_us();
  const StepPlan& plan = scheduler_.schedule(begin_us, pacer_ ? pacer_->prefill_limit() : Scheduler::kNoLimit);
  if (!plan.entries.empty()) {
    compute(plan);
    if (pacer_) pace(plan, now_us() - begin_us);
  }
  scheduler_.commit(plan, sampled_, sequence_events_);
  deliver();
}

// On an asynchronous device a step that samples nothing does not wait, and its work falls into the time of the next: neither
// counts.
void Engine::Impl::pace(const StepPlan& plan, std::int64_t elapsed_us) {
  const bool waits = !backend_->is_asynchronous() || !host_batch_.logit_rows.empty();
  if (waits && has_waited_) pacer_->observe(plan.num_decode, plan.num_tokens - plan.num_decode, elapsed_us);
  has_waited_ = waits;
}

void Engine::Impl::compute(const StepPlan& plan) {
  build_batch(plan, host_batch_);
  block_pairs_.clear();
  for (const BlockCopy& copy : plan.copies) block_pairs_.push_back({copy.from, copy.to});
  pool_.copy_blocks(block_pairs_);
  if (backend_->replays() && plan.num_decode == plan.num_tokens) {
    pad_batch(host_batch_, padded_rows(plan.num_decode, options_.max_batched_tokens));
  }
  const Batch batch = uploader_.upload(host_batch_);
  backend_->run(batch.replay_key, [&] { decoder_.forward(batch); });
  sample(plan, batch.logit_rows);
}

// Logits are made and sampled for a bounded number of rows at a time: a row takes V floats. What the rows are sampled with is
// worked out here, masks of the caller's own included, while an asynchronous device computes the forward pass.
void Engine::Impl::sample(const StepPlan& plan, const TensorView& rows) {
  const std::size_t num_rows = host_batch_.logits.size();
  results_.resize(num_rows);
  const auto chunk = static_cast<std::size_t>(decoder_.max_logit_rows());
  for (std::size_t begin = 0; begin < num_rows; begin += chunk) {
    const std::size_t count = std::min(chunk, num_rows - begin);
    sample_rows_.clear();
    for (std::size_t i = begin; i < begin + count; ++i) {
      const LogitRow& row = host_batch_.logits[i];
      sample_rows_.push_back(sample_row(*plan.entries[static_cast<std::size_t>(row.entry)].sequence, row));
    }
    const TensorView logits = decoder_.logits(rows.rows(static_cast<std::int64_t>(begin), static_cast<std::int64_t>(count)));
    backend_->sample({.logits = logits, .rows = sample_rows_.data(), .results = results_.data() + begin});
  }
  for (std::size_t i = 0; i < num_rows; ++i) take_result(plan, i);
}

SampleRow Engine::Impl::sample_row(const Sequence& sequence, const LogitRow& row) {
  const ChoiceRef ref = choice_of_.at(sequence.id());
  const SamplingParams& sampling = ref.record->request().sampling;
  if (!row.samples) {
    SampleRow prompt_row;
    prompt_row.draw = false;
    prompt_row.num_allowed = num_samplable();  // alternatives come from the vocabulary, not from its padding
    prompt_row.target = ref.record->request().prompt[static_cast<std::size_t>(row.target_position)];
    prompt_row.logprob = true;
    prompt_row.num_top = *sampling.prompt_logprobs;
    return prompt_row;
  }
  RequestRecord::Choice& choice = ref.record->choices()[static_cast<std::size_t>(ref.choice)];
  try {
    return choice.sampler->next_row();
  } catch (const std::exception& error) {
    choice.error = fmt::format("token_mask threw: {}", error.what());
  } catch (...) {
    choice.error = "token_mask threw";
  }
  return SampleRow{};  // its result is thrown away
}

void Engine::Impl::take_result(const StepPlan& plan, std::size_t index) {
  const LogitRow& row = host_batch_.logits[index];
  const Sequence& sequence = *plan.entries[static_cast<std::size_t>(row.entry)].sequence;
  const ChoiceRef ref = choice_of_.at(sequence.id());
  const SampleResult& result = results_[index];
  if (!row.samples) {
    take_prompt_result(ref, sequence, row.target_position, result);
    return;
  }
  RequestRecord::Choice& choice = ref.record->choices()[static_cast<std::size_t>(ref.choice)];
  if (choice.error.empty() && !result.ok) {
    choice.error = "no token can be sampled: every token is masked, or the logits hold a NaN";
  }
  choice.result = result;
  sampled_.push_back(choice.error.empty() ? result.token : -1);
}

void Engine::Impl::take_prompt_result(const ChoiceRef& ref, const Sequence& sequence, int position, const SampleResult& result) {
  if (sequence.finish_reason() != FinishReason::kNone) return;  // by a row before
  if (result.ok) {
    ref.record->add_prompt_logprobs(position, result);
    return;
  }
  ref.record->choices()[static_cast<std::size_t>(ref.choice)].error =
      fmt::format("prompt_logprobs: the logits of prompt position {} hold a NaN or an infinity", position);
  scheduler_.finish(sequence.id(), FinishReason::kError);
}

void Engine::Impl::deliver() {
  for (const SequenceEvent& event : sequence_events_) {
    const auto found = choice_of_.find(event.id);
    if (found == choice_of_.end()) continue;  // it ended by a stop string, in the step before
    const ChoiceRef ref = found->second;
    RequestRecord& record = *ref.record;
    const bool stopped = record.add(ref.choice, event, events_);
    if (stopped) scheduler_.finish(event.id, FinishReason::kStop);
    if (stopped || event.finish_reason != FinishReason::kNone) choice_of_.erase(event.id);
    if (record.finished()) records_.erase(record.id());
  }
}

// The step may be half done on the device and in the books: nothing computed from here on could be trusted. Throws nothing.
void Engine::Impl::give_up(const Error& error) {
  failure_ = error;
  failed_ = true;
  const auto note = [](const ChoiceRef& ref, int cached_tokens) {
    ref.record->choices()[static_cast<std::size_t>(ref.choice)].usage.cached_tokens = cached_tokens;
  };
  for (const SequenceEvent& event : sequence_events_) {  // some of these are not delivered, and their sequences are gone
    if (const auto found = choice_of_.find(event.id); found != choice_of_.end()) note(found->second, event.cached_tokens);
  }
  for (const auto& [id, ref] : choice_of_) {
    if (const Sequence* sequence = scheduler_.find(id)) note(ref, sequence->cached_tokens());
  }
  scheduler_.abandon();
}

// Can be called again after an exception, and goes on where it was.
void Engine::Impl::end_all_with_error() {
  const std::string reason = failure_->what();
  while (!records_.empty()) {
    const auto first = records_.begin();
    first->second->fail(reason, events_);
    records_.erase(first);
  }
  choice_of_.clear();
}

// ---- the rest

void Engine::Impl::refuse_within_step(const char* member) const {
  if (in_step_) fail(ErrorCode::kInvalidArgument, "Engine::{}() is called within Engine::step(), by a token_mask", member);
}

bool Engine::Impl::cancel(RequestId id) {
  refuse_within_step("cancel");
  const auto found = records_.find(id);
  if (found == records_.end()) return false;
  for (const RequestRecord::Choice& choice : found->second->choices()) {
    if (!choice.finished) scheduler_.finish(choice.sequence, FinishReason::kCancelled);
  }
  return true;
}

EngineStats Engine::Impl::stats() const {
  const SchedulerStats scheduler = scheduler_.stats();
  EngineStats stats;
  stats.num_waiting = scheduler.num_waiting;
  stats.num_running = scheduler.num_running;
  stats.total_blocks = scheduler.total_blocks;
  stats.free_blocks = scheduler.free_blocks;
  stats.cached_blocks = scheduler.cached_blocks;
  stats.held_blocks = scheduler.held_blocks;
  stats.held_token_slots = scheduler.held_token_slots;
  stats.written_token_slots = scheduler.written_token_slots;
  stats.prefill_limit = pacer_ ? pacer_->prefill_limit() : 0;
  stats.num_steps = scheduler.num_steps;
  stats.num_preemptions = scheduler.num_preemptions;
  stats.prefill_tokens = scheduler.prefill_tokens;
  stats.generated_tokens = scheduler.generated_tokens;
  stats.cached_tokens = scheduler.cached_tokens;
  stats.kv_bytes = pool_.num_bytes();
  stats.weight_bytes = model_.weights.num_bytes;
  stats.cpu_isa = backend_->isa();
  return stats;
}

Engine::Engine(const std::string& model_path, const EngineOptions& options)
    : impl_(throwing_errors([&] { return std::make_unique<Impl>(model_path, options); })) {}
Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine make_engine(const std::string& model_path, const EngineOptions& options, std::unique_ptr<Backend> backend) {
  return Engine(std::make_unique<Engine::Impl>(model_path, options, std::move(backend)));
}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;

RequestId Engine::submit(Request request) {
  return throwing_errors([&] { return impl_->submit(std::move(request)); });
}
void Engine::check(const Request& request) const {
  throwing_errors([&] { impl_->check(request); });
}
std::vector<TokenEvent> Engine::step() { return impl_->step(); }
bool Engine::cancel(RequestId id) { return impl_->cancel(id); }
void Engine::drain() { impl_->drain(); }
bool Engine::has_work() const { return impl_->has_work(); }
EngineStats Engine::stats() const { return impl_->stats(); }
const Tokenizer& Engine::tokenizer() const { return impl_->tokenizer(); }
int Engine::max_context() const { return impl_->options().max_context; }
int Engine::vocab_size() const { return impl_->vocab_size(); }
const EngineOptions& Engine::options() const { return impl_->options(); }

}  // namespace quire
