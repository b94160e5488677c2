// AttentionWork of a CUDA backend: a SplitPlan as one array of int32, so that it travels with the step's other arrays, and back
// as what a launch wants. Layout: a head, the waves, the items, the combines (kernels/cuda/split_plan.h). Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/split_plan.h"
#include "kernels/ops.h"

namespace quire {

// Adds `plan` to `list`; nothing if it has no items. Items and combines are filled up to powers of two with such that do nothing,
// so that equal launches are frequent. Adds to `on_host` what a launch takes from the list: where it is equal, launches are.
void append_work(cuda::SplitPlan plan, std::vector<std::int32_t>& list, std::vector<std::int32_t>& on_host);

// Ints of the list of a plan of at most this size.
std::int64_t most_ints(const cuda::SplitSize& size);

// Memory for partial results, the same in every step, so that a launch does not depend on how much of it a step uses.
struct PartialMemory {
  void* data = nullptr;
  std::int64_t bytes = 0;
};

// The launch's view of `work`. REQUIRES: `work` is what append_work() wrote, on both sides, for heads of `head_size`.
cuda::AttentionPlan attention_plan(const AttentionWork& work, int head_size, const PartialMemory& memory);

}  // namespace quire
