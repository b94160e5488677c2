// run_load: sends the requests of a workload when they are due, and writes down what came of each.
//
// In an open loop nothing waits for an answer: a request is due at its time, however slow the target is, and its latencies count
// from then. (Were they counted from when it was sent, a generator that falls behind would hide the queue that the user sees:
// "coordinated omission".) How late it was sent is kept too, as a check of the generator itself.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "benchmarks/serving/target.h"

namespace quire::bench {

// Times in seconds from the start of the run.
struct RequestRecord {
  double due_s = 0;  // latencies count from here: the planned arrival; in a closed loop when it was sent
  double sent_s = 0;
  double end_s = 0;  // of the last piece; of the failure, if it failed
  std::vector<double> piece_s = {};
  int asked_output_tokens = 0;
  int input_tokens = 0;   // as counted by the target, else as planned
  int output_tokens = 0;  // as counted by the target, else the number of pieces
  int cached_tokens = 0;
  bool counted = false;  // by the target: output_tokens is its number
  std::optional<Failure> failure = {};
};

struct LoadProgress {
  std::size_t total = 0, sent = 0, done = 0, failed = 0;
};

struct LoadOptions {
  int num_streams = 0;  // closed loop: so many requests are open at any time; 0: open loop
  std::size_t allowed_failures = 0;
  std::chrono::milliseconds timeout{3'600'000};  // of the run, from the last arrival that is planned (in a closed loop the start)
  std::function<void(const LoadProgress&)> on_progress = {};  // called on the thread of run_load, a few times a second
};

struct RunRecord {
  std::vector<RequestRecord> requests;  // those sent, in order
  bool given_up = false;   // more failed than allowed, or it took too long: the rest was not sent, what was open was cancelled
  bool timed_out = false;  // given up since it took too long
};

RunRecord run_load(const std::vector<PlannedRequest>& workload, Target& target, const LoadOptions& options);

}  // namespace quire::bench
