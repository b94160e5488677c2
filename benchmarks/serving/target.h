// Target: what answers the requests of a run, and Answer, what it says of one. All times are of one steady clock, read when the
// client has the tokens in hand.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/serving/workload.h"

namespace quire::bench {

using Clock = std::chrono::steady_clock;

struct Failure {
  std::string kind = {};  // one of few: "connect", "timeout", "closed", "http_503", "bad_stream", "server_error", ...
  std::string message = {};
};

struct Answer {
  std::vector<Clock::time_point> pieces = {};  // when each piece of the answer came: a token each, or more if the server sends so
  std::optional<int> prompt_tokens = {};       // as the target counts them, if it says
  std::optional<int> output_tokens = {};
  std::optional<int> cached_tokens = {};  // of the prompt, found in a prefix cache
  std::optional<Failure> failure = {};
};

// Takes the one answer of a request. May be called on any thread, also before launch returns.
using AnswerSink = std::function<void(Answer)>;
// Sends a prepared request, once; does not wait for the answer and does not throw.
using Launch = std::function<void(AnswerSink)>;

class Target {
 public:
  virtual ~Target() = default;
  // All that can be done before the request is due: prompt and message are made here. Throws Error for a request that cannot be.
  virtual Launch prepare(const PlannedRequest& request) = 0;
  // Ends every open request; their answers come with a failure of kind "cancelled". A launch from then on is answered so too.
  virtual void cancel_all() = 0;
};

}  // namespace quire::bench
