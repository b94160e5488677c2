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
    double sum_logprob = 0.0;           // of the generated tokens
    bool finished = false;              // its last event has been made
    Usage usage;                        // of its last event so far
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
  bool finished() const { return is_released_; }  // every choice's last event has left

  // The logprobs of prompt position `position`: 1, 2, and so on.
  void add_prompt_logprobs(int position, const SampleResult& result);

  // One event of the scheduler; the token's logprobs are in the choice's `result`. Appends what the user sees to `out`. True: the
  // text has reached a stop string, and the scheduler is to drop the sequence with no event of its own. After an exception only
  // fail() may follow.
  bool add(int choice, const SequenceEvent& event, std::vector<TokenEvent>& out);

  // Ends every choice that has not ended, with FinishReason::kError. May be called again after an exception: whatever came before
  // it, each choice gets one last event.
  void fail(const std::string& message, std::vector<TokenEvent>& out);

 private:
  TokenEvent make_event(int choice, const SequenceEvent& event);
  void deliver(TokenEvent event, std::vector<TokenEvent>& out);
  bool chooses_best() const { return request_.sampling.best_of > request_.sampling.n; }
  void release(std::vector<TokenEvent>& out);
  void release_best(std::vector<TokenEvent>& out);

  RequestId id_;
  Request request_;
  std::vector<Choice> choices_;
  std::vector<PositionLogprobs> prompt_logprobs_;  // of the positions so far, if asked; moves into an event
  bool prompt_logprobs_sent_ = false;
  int num_finished_ = 0;  // choices
  bool is_released_ = false;
};

}  // namespace quire
