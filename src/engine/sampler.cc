#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "core/check.h"
#include "core/math.h"
#include "core/utf8.h"

namespace quire {
namespace {

constexpr std::size_t kMaxBiases = 1024;
constexpr std::size_t kMaxStops = 64;
constexpr std::size_t kMaxStopBytes = 1024;
constexpr std::size_t kMaxStopTokens = 1024;
constexpr int kMaxChoices = 128;

void check_range(const char* field, double value, double low, double high, bool low_open = false) {
  const bool above = low_open ? value > low : value >= low;
  if (above && value <= high) return;  // false for NaN
  fail(ErrorCode::kInvalidArgument, "{} is {}, outside {}{}, {}]", field, value, low_open ? '(' : '[', low, high);
}

void check_token(const char* field, std::int64_t token, int vocab_size) {
  if (token >= 0 && token < vocab_size) return;
  fail(ErrorCode::kInvalidArgument, "{} holds token {}, outside the vocabulary [0, {})", field, token, vocab_size);
}

void check_size(const char* field, std::size_t size, std::size_t limit) {
  if (size > limit) fail(ErrorCode::kInvalidArgument, "{} has {} entries, more than {}", field, size, limit);
}

void check_stops(const std::vector<std::string>& stops) {
  check_size("stop", stops.size(), kMaxStops);
  for (std::size_t i = 0; i < stops.size(); ++i) {
    const std::size_t size = stops[i].size();
    if (size < 1 || size > kMaxStopBytes) {
      fail(ErrorCode::kInvalidArgument, "stop[{}] has {} bytes, outside [1, {}]", i, size, kMaxStopBytes);
    }
    if (!is_valid_utf8(stops[i])) fail(ErrorCode::kInvalidArgument, "stop[{}] is not valid UTF-8", i);
  }
}

void check_biases(const SamplingParams& params, int vocab_size) {
  check_size("logit_bias", params.logit_bias.size(), kMaxBiases);
  for (const auto& [token, bias] : params.logit_bias) {
    check_token("logit_bias", token, vocab_size);
    if (std::isnan(bias) || bias == std::numeric_limits<float>::infinity()) {
      fail(ErrorCode::kInvalidArgument, "logit_bias of token {} is {}, neither finite nor -infinity", token, bias);
    }
  }
}

std::vector<TokenBias> distinct(const std::map<TokenId, float>& biases) {
  std::vector<TokenBias> out;
  out.reserve(biases.size());
  for (const auto& [token, bias] : biases) out.push_back({token, bias});
  return out;
}

}  // namespace

void validate_sampling(const SamplingParams& params, int vocab_size) {
  constexpr double kInt = std::numeric_limits<int>::max();
  check_range("temperature", params.temperature, 0, 100);
  check_range("top_k", params.top_k, 0, kInt);
  check_range("top_p", params.top_p, 0, 1, true);
  check_range("min_p", params.min_p, 0, 1);
  check_range("typical_p", params.typical_p, 0, 1, true);
  check_range("repetition_penalty", params.repetition_penalty, 0, 10, true);
  check_range("presence_penalty", params.presence_penalty, -2, 2);
  check_range("frequency_penalty", params.frequency_penalty, -2, 2);
  check_range("n", params.n, 1, kMaxChoices);
  if (params.best_of != 0) check_range("best_of", params.best_of, params.n, kMaxChoices);
  if (params.logprobs) check_range("logprobs", *params.logprobs, 0, SampleResult::kMaxTop);
  if (params.prompt_logprobs) check_range("prompt_logprobs", *params.prompt_logprobs, 0, SampleResult::kMaxTop);
  check_range("max_tokens", params.max_tokens, 1, kInt);
  check_range("min_tokens", params.min_tokens, 0, params.max_tokens);
  check_size("stop_token_ids", params.stop_token_ids.size(), kMaxStopTokens);
  for (const TokenId token : params.stop_token_ids) check_token("stop_token_ids", token, vocab_size);
  check_biases(params, vocab_size);
  check_stops(params.stop);
}

ChoiceSampler::ChoiceSampler(const SamplingParams& params, std::span<const TokenId> prompt, std::span<const TokenId> end_ids,
                             std::uint64_t seed, int choice, int num_allowed)
    : params_(params),
      seed_(seed),
      choice_(choice),
      num_allowed_(num_allowed),
      penalised_(params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f || params.frequency_penalty != 0.0f) {
  std::map<TokenId, float> biases;
  for (const auto& [token, bias] : params.logit_bias) {  // -infinity forbids, whatever else is added
    float& sum = biases[token];
    constexpr float kMost = std::numeric_limits<float>::max();
    sum = std::isinf(sum) || std::isinf(bias) ? -std::numeric_limits<float>::infinity() : std::clamp(sum + bias, -kMost, kMost);
  }
  biases_ = distinct(biases);
  if (params.min_tokens > 0) {
    constexpr float kForbidden = -std::numeric_limits<float>::infinity();
    for (const TokenId token : end_ids) biases[token] = kForbidden;
    for (const TokenId token : params.stop_token_ids) biases[token] = kForbidden;
    biases_with_ends_ = distinct(biases);
  }
  if (penalised_) {
    count_of_.reserve(prompt.size());
    for (const TokenId token : prompt) count(token, 0);
  }
  if (params.token_mask) mask_.resize(static_cast<std::size_t>(ceil_div(num_allowed, 32)));
}

void ChoiceSampler::count(TokenId token, int in_output) {
  const auto [place, is_new] = count_of_.try_emplace(token, counts_.size());
  if (is_new) counts_.push_back({.token = token, .in_output = 0});
  counts_[place->second].in_output += in_output;
}

SampleRow ChoiceSampler::next_row() {
  const bool may_end = static_cast<int>(generated_.size()) >= params_.min_tokens;
  const std::vector<TokenBias>& biases = may_end ? biases_ : biases_with_ends_;
  if (params_.token_mask) {
    std::fill(mask_.begin(), mask_.end(), ~std::uint32_t{0});
    params_.token_mask(generated_, mask_);
  }
  return {.temperature = params_.temperature,
          .top_k = params_.top_k,
          .top_p = params_.top_p,
          .min_p = params_.min_p,
          .typical_p = params_.typical_p,
          .repetition_penalty = params_.repetition_penalty,
          .presence_penalty = params_.presence_penalty,
          .frequency_penalty = params_.frequency_penalty,
          .counts = counts_.empty() ? nullptr : counts_.data(),
          .num_counts = static_cast<int>(counts_.size()),
          .biases = biases.empty() ? nullptr : biases.data(),
          .num_biases = static_cast<int>(biases.size()),
          .mask = mask_.empty() ? nullptr : mask_.data(),
          .num_allowed = num_allowed_,
          .seed = seed_,
          .stream = static_cast<std::uint32_t>(choice_),
          .counter = static_cast<std::uint32_t>(generated_.size()),
          .logprob = params_.logprobs.has_value() || params_.best_of > params_.n,
          .num_top = params_.logprobs.value_or(0)};
}

void ChoiceSampler::accept(TokenId token) {
  generated_.push_back(token);
  if (penalised_) count(token, 1);
}

}  // namespace quire
