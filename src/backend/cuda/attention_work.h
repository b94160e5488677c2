// AttentionWork of a CUDA backend: a SplitPlan as one array of int32, so that it travels with the step's other arrays, and back
// as what a launch wants. Layout: a head of kHeadInts, the waves, the items, the combines (kernels/cuda/split_plan.h). Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/split_plan.h"
#include "kernels/ops.h"

namespace quire {

// Adds `plan` to `list`; nothing if it has no items. Items and combines are filled up to powers of two with such that do nothing,
// so that equal launches are frequent. Returns a number for what a launch takes from the list: of equal numbers, equal launches.
std::uint64_t append_work(const cuda::SplitPlan& plan, std::vector<std::int32_t>& list);

// The launch's view of `work`, with `workspace` for partial results. REQUIRES: `work` is what append_work() wrote, on both sides.
cuda::AttentionPlan attention_plan(const AttentionWork& work, void* workspace);

}  // namespace quire
