#include "scheduler/step_pacer.h"

#include <algorithm>

namespace quire {
namespace {

// The mean of what was seen, the last step with a weight of a quarter: one slow step does not choke prompts for long.
double smoothed(double before, double now) { return before == 0.0 ? now : before + (now - before) / 4; }

}  // namespace

int StepPacer::prompt_tokens(int num_decode) const {
  if (max_step_us_ == 0.0 || num_decode == 0) return kUnlimited;
  if (token_us_ == 0.0) return kLeastChunk;  // to learn from
  const double tokens = (max_step_us_ - decode_us_) / token_us_;
  return static_cast<int>(std::clamp<double>(tokens, kLeastChunk, kUnlimited));
}

void StepPacer::observe(int num_decode, int num_prompt_tokens, std::int64_t us) {
  const auto time = static_cast<double>(us);
  if (num_prompt_tokens == 0) {
    if (num_decode > 0) decode_us_ = smoothed(decode_us_, time);
    return;
  }
  // With decode rows the prompt pays for what they would not have taken alone, but never for nothing: decode_us_ may be old.
  const double added = num_decode > 0 ? std::max(time - decode_us_, time / 8) : time;
  token_us_ = smoothed(token_us_, added / num_prompt_tokens);
}

}  // namespace quire
