// StepPacer: how many tokens of prompts a step may compute while other sequences wait for their next token, so that the step
// takes about max_step_us at most. It learns from the steps before: what decode rows alone take, and what a prompt's token adds.
// It reads no clock: times are arguments, so that a test with fake times always gets the same schedule.
#pragma once

#include <cstdint>
#include <limits>

namespace quire {

class StepPacer {
 public:
  static constexpr int kUnlimited = std::numeric_limits<int>::max();
  static constexpr int kLeastChunk = 16;  // prompts advance even where decode rows alone take longer than the limit

  explicit StepPacer(std::int64_t max_step_us) : max_step_us_(static_cast<double>(max_step_us)) {}  // 0: no limit

  // The most tokens of prompts for a step with `num_decode` decode rows.
  int prompt_tokens(int num_decode) const;

  // A step of these sizes took so long.
  void observe(int num_decode, int num_prompt_tokens, std::int64_t us);

 private:
  double max_step_us_;
  double decode_us_ = 0.0;  // a step of decode rows alone; 0: none was seen
  double token_us_ = 0.0;   // what each token of a prompt adds; 0: none was seen
};

}  // namespace quire
