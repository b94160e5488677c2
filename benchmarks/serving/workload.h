// The requests of a run: when each is due, how long it is, and what of its prompt others share. Made before the run, from a seed,
// so that two targets get the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "benchmarks/serving/arrivals.h"
#include "benchmarks/serving/trace.h"

namespace quire::bench {

// A piece of a prompt: the first `length` tokens of the endless sequence that `key` names.
struct PromptSegment {
  std::uint64_t key = 0;
  int length = 0;

  bool operator==(const PromptSegment&) const = default;
};

struct PlannedRequest {
  double due_s = 0;  // from the start of the run; in a closed loop 0
  std::vector<PromptSegment> prompt = {};
  int input_tokens = 0;  // the sum of the segments
  int output_tokens = 0;
};

// One length, or all from `least` to `most` alike.
struct LengthRange {
  int least = 1;
  int most = 1;
};

// "512" or "64:512". Throws Error(kInvalidArgument) naming `field`.
LengthRange parse_length_range(std::string_view text, std::string_view field);

struct WorkloadSpec {
  std::size_t num_requests = 64;
  std::uint64_t seed = 1;
  std::uint64_t run = 0;                  // of several with one seed: the lengths are the same, the prompts share nothing
  LengthRange input_tokens = {512, 512};  // without `lengths`
  LengthRange output_tokens = {128, 128};
  int prefix_tokens = 0;     // more, the same at the start of each prompt
  int max_input_tokens = 0;  // longer ones of a file are cut to it; 0: none are
  int max_output_tokens = 0;
};

// Lengths drawn from the ranges, or, if it has rows, from `lengths`: a row each, so that long prompts keep their answers.
// `due_s` holds a time for each request, or is empty (closed loop).
std::vector<PlannedRequest> draw_workload(const WorkloadSpec& spec, const Trace& lengths, const std::vector<double>& due_s);

struct ReplaySpec {
  std::size_t first_row = 1;  // from 1
  double time_scale = 1;      // multiplies the times: 0.5 is twice the load
  double length_scale = 1;    // multiplies all lengths, and the blocks that are shared; at most 1
  double max_gap_s = 300;     // after scaling; a longer pause is refused, since the run would only wait
};

// Rows from `replay.first_row` on, at most `spec.num_requests`, the first of them due at 0. Throws Error(kInvalidArgument or
// kInvalidFile) naming option, file and line.
std::vector<PlannedRequest> replay_workload(const WorkloadSpec& spec, const ReplaySpec& replay, const Trace& trace,
                                            const std::string& name);

// `count` requests as long as the first of `requests`, which share nothing with them or with each other.
std::vector<PlannedRequest> warmup_workload(const std::vector<PlannedRequest>& requests, std::size_t count);

}  // namespace quire::bench
