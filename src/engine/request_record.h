// RequestRecord: what the engine remembers of one request beyond its sequences: sampling state, text and logprobs per choice.
// Turns the scheduler's integers into the user's TokenEvents. Knows nothing of steps, blocks or devices.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/sampler.h"
#include "quire/request.h"
#include "quire/tokenizer.h"
#include "scheduler/scheduler.h"

namespace quire {

class RequestRecord {
 public:
  struct Choice {
    SequenceId sequence = 0;
    std::unique_ptr<ChoiceSampler> sampler;
    TextStream text;
    double sum_logprob = 0.0;  // of the generated tokens
    bool finished = false;
    SampleResult result;                // of the step under way
    std::string error;                  // why sampling failed, for its last event
    std::vector<TokenEvent> held_back;  // with best_of > n, until all choices have ended
  };

  // `seed` is the request's own, or one drawn for it; ids below `num_samplable` can be sampled.
  RequestRecord(RequestId id, Request request, const Tokenizer& tokenizer, std::span<const TokenId> end_ids, std::uint64_t seed,
                int num_samplable);
  RequestRecord(const RequestRecord&) = delete;  // samplers point into request_
  RequestRecord& operator=(const RequestRecord&) = delete;

  RequestId id() const { return id_; }
  const Request& request() const { return request_; }
  std::vector<Choice>& choices() { return choices_; }
  bool finished() const { return num_finished_ == static_cast<int>(choices_.size()); }

  // The logprobs of prompt position `position` (1 and up), computed in any order and possibly again after a preemption.
  void set_prompt_logprobs(int position, const SampleResult& result);

  // One event of the scheduler; the token's logprobs are in the choice's `result`. Appends what the user sees to `out`. True: the
  // text has reached a stop string, and the scheduler is to drop the sequence with no event of its own.
  bool add(int choice, const SequenceEvent& event, std::vector<TokenEvent>& out);

  // Ends every choice that has not ended, with FinishReason::kError.
  void fail(const std::string& message, std::vector<TokenEvent>& out);

 private:
  TokenEvent make_event(int choice, const SequenceEvent& event);
  void deliver(TokenEvent event, std::vector<TokenEvent>& out);
  void release_best(std::vector<TokenEvent>& out);

  RequestId id_;
  Request request_;
  std::vector<Choice> choices_;
  std::vector<PositionLogprobs> prompt_logprobs_;  // [prompt - 1] if asked
  bool prompt_logprobs_sent_ = false;
  int num_finished_ = 0;
};

}  // namespace quire
