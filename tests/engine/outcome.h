// Outcome: everything a request produced, down to the bits of its logprobs, so that two runs can be compared for equality; and
// runs of many requests under one EngineOptions. For the tests of "the schedule never changes the answer".
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "quire/engine.h"

namespace quire::test {

struct Outcome {
  std::vector<TokenId> tokens;
  std::vector<std::uint32_t> logprob_bits;  // of the tokens and their alternatives, in order
  std::vector<TokenId> alternatives;
  std::vector<std::uint32_t> prompt_logprob_bits;  // the same for the prompt
  std::string text;
  FinishReason finish_reason = FinishReason::kNone;

  bool operator==(const Outcome&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Outcome& outcome);

// By (place of the request in the list, choice).
using Outcomes = std::map<std::pair<int, int>, Outcome>;

struct RunPlan {
  int per_step = 1000;             // requests submitted before each step: 1 staggers arrivals
  bool cancel_neighbours = false;  // also submits copies of the requests that are cancelled at different moments
  int repeats = 1;                 // the list is run this often on the same engine; all must agree (cold, then warm)
};

// Adds the events of one step. Checks their order: nothing after a finish reason.
void collect(const std::vector<TokenEvent>& events, const std::map<RequestId, int>& place_of, Outcomes& outcomes);

Outcomes run(Engine& engine, const std::vector<Request>& requests, const RunPlan& plan = {});

// Each request on its own, one after the other, on an engine made for it alone.
Outcomes run_alone(const std::string& model, const EngineOptions& options, const std::vector<Request>& requests);

// Sixteen requests of every kind: greedy, sampled with each filter and penalty, with logprobs, prompt logprobs, several choices,
// shared prefixes, prompts of one token and of `longest` tokens. Token ids below `vocab_size`; the same for the same arguments.
std::vector<Request> mixed_requests(int vocab_size, int longest, int max_tokens);

}  // namespace quire::test
