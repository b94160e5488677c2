// StepPacer: how many tokens of prompts a step may compute beside running decodes, so that it takes no longer than a limit. It
// learns from the steps themselves: what one without prompts takes, and what each token of a prompt adds. Numbers in, a number
// out: it reads no clock, so that a simulation can drive it, and what it says changes when a token is computed, never which.
// Chunked prefill beside decodes: Agrawal et al. 2024, "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve"
// (arXiv:2403.02310), section 4.3, where the budget is profiled once for a device; here it follows contexts and load.
#pragma once

#include <cstdint>

namespace quire {

class StepPacer {
 public:
  // A step takes at most limit_us as far as prompts can help it. Never less than `least` tokens, whatever they take, so that
  // prompts advance; `most` is the whole step. REQUIRES: limit_us > 0, 1 <= least <= most.
  StepPacer(std::int64_t limit_us, int least, int most);

  // Tokens for Scheduler::schedule; a multiple of `least`, or `most`. Before anything is known, 2 * least.
  int prefill_limit() const;

  // A step of so many decode rows and prompt tokens has taken elapsed_us.
  void observe(int num_decode, int num_prefill, std::int64_t elapsed_us);

 private:
  std::int64_t limit_ns_;
  int least_;
  int most_;
  std::int64_t decode_ns_ = 0;   // a step without prompts
  std::int64_t prefill_ns_ = 0;  // each token of a prompt; 0: not known
};

}  // namespace quire
