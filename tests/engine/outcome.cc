#include "tests/engine/outcome.h"

#include <gtest/gtest.h>

#include <bit>
#include <ostream>
#include <random>

namespace quire::test {
namespace {

void add_position(const PositionLogprobs& position, std::vector<std::uint32_t>& bits, std::vector<TokenId>& alternatives) {
  bits.push_back(std::bit_cast<std::uint32_t>(position.chosen.logprob));
  for (const TokenLogprob& top : position.top) {
    bits.push_back(std::bit_cast<std::uint32_t>(top.logprob));
    alternatives.push_back(top.token);
  }
}

std::vector<TokenId> random_tokens(std::mt19937& random, int count, int vocab_size) {
  std::vector<TokenId> tokens(static_cast<std::size_t>(count));
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % static_cast<unsigned>(vocab_size));
  return tokens;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Outcome& outcome) {
  out << to_string(outcome.finish_reason) << ", tokens";
  for (const TokenId token : outcome.tokens) out << ' ' << token;
  out << ", logprob bits" << std::hex;
  for (const std::uint32_t bits : outcome.logprob_bits) out << ' ' << bits;
  out << ", prompt logprob bits";
  for (const std::uint32_t bits : outcome.prompt_logprob_bits) out << ' ' << bits;
  return out << std::dec;
}

void collect(const std::vector<TokenEvent>& events, const std::map<RequestId, int>& place_of, Outcomes& outcomes) {
  for (const TokenEvent& event : events) {
    const auto place = place_of.find(event.request_id);
    if (place == place_of.end()) continue;  // a neighbour
    Outcome& outcome = outcomes[{place->second, event.index}];
    EXPECT_EQ(outcome.finish_reason, FinishReason::kNone) << "an event after the last of request " << place->second;
    if (event.token >= 0) outcome.tokens.push_back(event.token);
    if (event.logprobs) add_position(*event.logprobs, outcome.logprob_bits, outcome.alternatives);
    for (const PositionLogprobs& position : event.prompt_logprobs) {
      add_position(position, outcome.prompt_logprob_bits, outcome.alternatives);
    }
    outcome.text += event.text;
    outcome.finish_reason = event.finish_reason;
    EXPECT_EQ(event.error, "");
  }
}

Outcomes run(Engine& engine, const std::vector<Request>& requests, const RunPlan& plan) {
  Outcomes first;
  for (int repeat = 0; repeat < plan.repeats; ++repeat) {
    Outcomes outcomes;
    std::map<RequestId, int> place_of;
    std::map<RequestId, int> neighbours;  // to the step at which it is cancelled
    std::size_t next = 0;
    for (int step = 0; next < requests.size() || engine.has_work(); ++step) {
      for (int i = 0; i < plan.per_step && next < requests.size(); ++i, ++next) {
        if (plan.cancel_neighbours) neighbours[engine.submit(requests[next])] = step + static_cast<int>(next % 7);
        place_of[engine.submit(requests[next])] = static_cast<int>(next);
      }
      for (const auto& [id, when] : neighbours) {
        if (when == step) engine.cancel(id);
      }
      collect(engine.step(), place_of, outcomes);
      if (step > 200'000) {
        ADD_FAILURE() << "the engine makes no progress";
        return outcomes;
      }
    }
    for (const auto& [key, outcome] : outcomes) {
      EXPECT_NE(outcome.finish_reason, FinishReason::kNone) << "request " << key.first << " has no last event";
    }
    if (repeat == 0) {
      first = std::move(outcomes);
    } else {
      EXPECT_EQ(first, outcomes) << "run " << repeat << " on a warm engine differs";
    }
  }
  return first;
}

Outcomes run_alone(const std::string& model, const EngineOptions& options, const std::vector<Request>& requests) {
  Outcomes all;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    Engine engine(model, options);
    for (auto& [key, outcome] : run(engine, {requests[i]})) all[{static_cast<int>(i), key.second}] = std::move(outcome);
  }
  return all;
}

std::vector<Request> mixed_requests(int vocab_size, int longest, int max_tokens) {
  std::mt19937 random(20261130);
  const std::vector<TokenId> shared = random_tokens(random, longest / 2, vocab_size);
  std::vector<Request> requests(16);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    Request& request = requests[i];
    const int length = 1 + static_cast<int>(i) * (longest - 1) / 15;
    request.prompt = random_tokens(random, length, vocab_size);
    if (i % 3 == 1) {  // a shared prefix in front
      request.prompt.insert(request.prompt.begin(), shared.begin(), shared.end());
      request.prompt.resize(std::min<std::size_t>(request.prompt.size(), static_cast<std::size_t>(longest)));
    }
    request.priority = static_cast<int>(i % 2);
    SamplingParams& sampling = request.sampling;
    sampling.max_tokens = 1 + static_cast<int>(i * 5 % static_cast<std::size_t>(max_tokens));
    sampling.seed = 1000 + i;
    sampling.temperature = i % 4 == 0 ? 0.0f : 0.5f + 0.1f * static_cast<float>(i);
    sampling.ignore_eos = i % 2 == 0;
    sampling.logprobs = static_cast<int>(i % 4);
  }
  requests[1].sampling.top_k = 20;
  requests[2].sampling.top_p = 0.9f;
  requests[3].sampling.min_p = 0.05f;
  requests[5].sampling.typical_p = 0.8f;
  requests[6].sampling.repetition_penalty = 1.3f;
  requests[7].sampling.presence_penalty = 0.7f;
  requests[7].sampling.frequency_penalty = 0.3f;
  requests[8].sampling.prompt_logprobs = 2;
  requests[9].sampling.logit_bias = {{3, 4.0f}, {5, -2.0f}};
  requests[10].sampling.n = 3;
  requests[11].sampling.min_tokens = requests[11].sampling.max_tokens;
  requests[13].sampling.prompt_logprobs = 0;
  requests[14].sampling.n = 2;
  requests[15].sampling.top_k = 5;
  requests[15].sampling.top_p = 0.7f;
  return requests;
}

}  // namespace quire::test
