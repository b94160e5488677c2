#include "engine/request_record.h"

#include <algorithm>
#include <numeric>

#include "core/check.h"

namespace quire {
namespace {

PositionLogprobs to_logprobs(const SampleResult& result, int num_top) {
  PositionLogprobs position;
  position.chosen = {result.token, result.logprob};
  for (int i = 0; i < num_top && result.top_tokens[i] >= 0; ++i) {
    position.top.push_back({result.top_tokens[i], result.top_logprobs[i]});
  }
  return position;
}

}  // namespace

RequestRecord::RequestRecord(RequestId id, Request request, const Tokenizer& tokenizer, std::span<const TokenId> end_ids,
                             std::uint64_t seed, int num_samplable)
    : id_(id), request_(std::move(request)) {
  const SamplingParams& sampling = request_.sampling;
  if (sampling.ignore_eos) end_ids = {};
  const TextStream text(tokenizer, sampling.stop, {.min_tokens = sampling.min_tokens});
  for (int i = 0; i < num_choices(sampling); ++i) {
    Choice choice{.sampler = std::make_unique<ChoiceSampler>(sampling, request_.prompt, end_ids, seed, i, num_samplable),
                  .text = text.another(),
                  .usage = {},
                  .result = {},
                  .error = {},
                  .held_back = {}};
    choices_.push_back(std::move(choice));
  }
  if (sampling.prompt_logprobs) prompt_logprobs_.reserve(request_.prompt.size() - 1);
}

void RequestRecord::add_prompt_logprobs(int position, const SampleResult& result) {
  QUIRE_CHECK(!prompt_logprobs_sent_ && static_cast<std::size_t>(position) == prompt_logprobs_.size() + 1);
  prompt_logprobs_.push_back(to_logprobs(result, *request_.sampling.prompt_logprobs));
}

bool RequestRecord::add(int choice_index, const SequenceEvent& event, std::vector<TokenEvent>& out) {
  Choice& choice = choices_[static_cast<std::size_t>(choice_index)];
  QUIRE_CHECK(!choice.finished);
  TokenEvent token_event = make_event(choice_index, event);
  const bool ends_by_token = event.finish_reason == FinishReason::kStop;  // the end or stop token is no part of the text
  if (event.token >= 0 && !ends_by_token) token_event.text = choice.text.push(event.token);
  const bool stopped = choice.text.stopped();
  if (stopped) token_event.finish_reason = FinishReason::kStop;
  const bool is_last = token_event.finish_reason != FinishReason::kNone;
  if (is_last) token_event.text += choice.text.finish();
  const Usage usage = token_event.usage;
  if (chooses_best()) {
    choice.held_back.push_back(std::move(token_event));
  } else {
    deliver(std::move(token_event), out);
  }
  // The event is where it cannot be lost: nothing throws before the choice says so.
  choice.usage = usage;
  if (is_last) {
    choice.finished = true;
    ++num_finished_;
  }
  if (num_finished_ == static_cast<int>(choices_.size())) release(out);
  return stopped && event.finish_reason == FinishReason::kNone;
}

void RequestRecord::fail(const std::string& message, std::vector<TokenEvent>& out) {
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    if (choices_[i].finished) continue;
    choices_[i].error = message;
    SequenceEvent event;
    event.finish_reason = FinishReason::kError;
    event.completion_tokens = choices_[i].usage.completion_tokens;
    event.cached_tokens = choices_[i].usage.cached_tokens;
    add(static_cast<int>(i), event, out);
  }
  if (!is_released_) release(out);
}

TokenEvent RequestRecord::make_event(int choice_index, const SequenceEvent& event) {
  Choice& choice = choices_[static_cast<std::size_t>(choice_index)];
  TokenEvent out;
  out.request_id = id_;
  out.index = choice_index;
  out.token = event.token;
  out.finish_reason = event.finish_reason;
  if (event.finish_reason == FinishReason::kError) out.error = choice.error;
  out.usage = {.prompt_tokens = static_cast<int>(request_.prompt.size()),
               .completion_tokens = event.completion_tokens,
               .cached_tokens = event.cached_tokens};
  if (event.token >= 0) {
    choice.sampler->accept(event.token);
    choice.sum_logprob += choice.result.logprob;
    if (request_.sampling.logprobs) out.logprobs = to_logprobs(choice.result, *request_.sampling.logprobs);
  }
  return out;
}

// Prompt logprobs ride on the first event that leaves for choice 0.
void RequestRecord::deliver(TokenEvent event, std::vector<TokenEvent>& out) {
  out.push_back(std::move(event));
  if (out.back().index != 0 || prompt_logprobs_sent_) return;
  out.back().prompt_logprobs = std::move(prompt_logprobs_);
  prompt_logprobs_sent_ = true;
}

// Every choice has ended.
void RequestRecord::release(std::vector<TokenEvent>& out) {
  if (chooses_best()) release_best(out);
  is_released_ = true;
}

// The n choices with the highest mean logprob, best first, become choices 0 to n - 1; ties go to the lower choice. A choice that
// failed ranks last. All of their events leave, or none.
void RequestRecord::release_best(std::vector<TokenEvent>& out) {
  std::vector<std::size_t> order(choices_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto score = [&](std::size_t i) {
    const Choice& choice = choices_[i];
    const int length = choice.usage.completion_tokens;
    const bool failed = choice.held_back.back().finish_reason == FinishReason::kError;
    return length == 0 || failed ? -std::numeric_limits<double>::infinity() : choice.sum_logprob / length;
  };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return score(a) > score(b); });
  order.resize(static_cast<std::size_t>(request_.sampling.n));
  std::size_t num_events = out.size();
  for (const std::size_t i : order) num_events += choices_[i].held_back.size();
  out.reserve(num_events);
  for (int i = 0; i < request_.sampling.n; ++i) {
    for (TokenEvent& event : choices_[order[static_cast<std::size_t>(i)]].held_back) {
      event.index = i;
      deliver(std::move(event), out);
    }
  }
}

}  // namespace quire
