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
  for (int i = 0; i < num_choices(sampling); ++i) {
    Choice choice{.sampler = std::make_unique<ChoiceSampler>(sampling, request_.prompt, end_ids, seed, i, num_samplable),
                  .text = TextStream(tokenizer, sampling.stop, {.min_tokens = sampling.min_tokens}),
                  .result = {},
                  .error = {},
                  .held_back = {}};
    choices_.push_back(std::move(choice));
  }
  if (sampling.prompt_logprobs) prompt_logprobs_.resize(request_.prompt.size() - 1);
}

void RequestRecord::set_prompt_logprobs(int position, const SampleResult& result) {
  if (prompt_logprobs_sent_) return;  // recomputed after a preemption, with the same bits
  prompt_logprobs_[static_cast<std::size_t>(position - 1)] = to_logprobs(result, *request_.sampling.prompt_logprobs);
}

bool RequestRecord::add(int choice_index, const SequenceEvent& event, std::vector<TokenEvent>& out) {
  Choice& choice = choices_[static_cast<std::size_t>(choice_index)];
  QUIRE_CHECK(!choice.finished);
  TokenEvent token_event = make_event(choice_index, event);
  const bool ends_by_token = event.finish_reason == FinishReason::kStop;  // the end or stop token is no part of the text
  if (event.token >= 0 && !ends_by_token) token_event.text = choice.text.push(event.token);
  const bool stopped = choice.text.stopped();
  if (stopped) token_event.finish_reason = FinishReason::kStop;
  if (token_event.finish_reason != FinishReason::kNone) {
    token_event.text += choice.text.finish();
    choice.finished = true;
    ++num_finished_;
  }
  const bool choose_best = request_.sampling.best_of > request_.sampling.n;
  if (choose_best) {
    choice.held_back.push_back(std::move(token_event));
    if (finished()) release_best(out);
  } else {
    deliver(std::move(token_event), out);
  }
  return stopped && event.finish_reason == FinishReason::kNone;
}

void RequestRecord::fail(const std::string& message, std::vector<TokenEvent>& out) {
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    if (choices_[i].finished) continue;
    choices_[i].error = message;
    SequenceEvent event;
    event.finish_reason = FinishReason::kError;
    event.completion_tokens = static_cast<int>(choices_[i].sampler->generated().size());
    add(static_cast<int>(i), event, out);
  }
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
  const bool computed = event.token >= 0;
  if (event.index == 0 && computed && !prompt_logprobs_sent_) {
    event.prompt_logprobs = std::move(prompt_logprobs_);
    prompt_logprobs_sent_ = true;
  }
  out.push_back(std::move(event));
}

// The n choices with the highest mean logprob, best first, become choices 0 to n - 1; ties go to the lower choice. A choice that
// failed ranks last.
void RequestRecord::release_best(std::vector<TokenEvent>& out) {
  std::vector<std::size_t> order(choices_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto score = [&](std::size_t i) {
    const Choice& choice = choices_[i];
    const FinishReason reason = choice.held_back.back().finish_reason;
    const std::size_t length = choice.sampler->generated().size();
    if (length == 0 || reason == FinishReason::kError) return -std::numeric_limits<double>::infinity();
    return choice.sum_logprob / static_cast<double>(length);
  };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return score(a) > score(b); });
  for (int i = 0; i < request_.sampling.n; ++i) {
    for (TokenEvent& event : choices_[order[static_cast<std::size_t>(i)]].held_back) {
      event.index = i;
      deliver(std::move(event), out);
    }
  }
}

}  // namespace quire
