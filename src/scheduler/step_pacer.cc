#include "scheduler/step_pacer.h"

#include <algorithm>

#include "core/check.h"

namespace quire {
namespace {

// Half of the way up, an eighth down: a limit is broken by what was taken for too cheap.
std::int64_t follow(std::int64_t known, std::int64_t seen) {
  if (known == 0) return seen;
  return known + (seen - known) / (seen > known ? 2 : 8);
}

}  // namespace

StepPacer::StepPacer(std::int64_t limit_us, int least, int most) : limit_ns_(limit_us * 1000), least_(least), most_(most) {
  QUIRE_CHECK_MSG(limit_us > 0 && 1 <= least && least <= most, "limit {} us, {} to {} tokens", limit_us, least, most);
}

int StepPacer::prefill_limit() const {
  if (prefill_ns_ == 0) return std::min(2 * least_, most_);
  const std::int64_t room_ns = limit_ns_ / 10 * 9 - decode_ns_;  // a tenth for what differs from step to step
  const std::int64_t fits = std::min<std::int64_t>(room_ns / prefill_ns_, most_);
  if (fits == most_) return most_;
  return static_cast<int>(std::max<std::int64_t>(fits / least_ * least_, least_));
}

void StepPacer::observe(int num_decode, int num_prefill, std::int64_t elapsed_us) {
  const std::int64_t elapsed_ns = std::max<std::int64_t>(elapsed_us, 1) * 1000;
  if (num_prefill == 0) {
    if (num_decode > 0) decode_ns_ = follow(decode_ns_, elapsed_ns);
    return;
  }
  // The decodes of this step took no longer than all of it. Under load no step is without prompts, and nothing else would ever
  // tell that what was taken for their time, in one slow step or with longer contexts, is theirs no more.
  if (num_decode > 0) decode_ns_ = std::min(decode_ns_, elapsed_ns);
  const std::int64_t added_ns = elapsed_ns - (num_decode > 0 ? decode_ns_ : 0);
  prefill_ns_ = std::max<std::int64_t>(follow(prefill_ns_, added_ns / num_prefill), 1);
}

}  // namespace quire
