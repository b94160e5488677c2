// The scalar half of sampling, the same for every instruction set: filters that remove tokens from one row's distribution, and
// the draw. A distribution is two arrays over the vocabulary: logits x[V] <= 0, the largest 0, and weights w[V] = e^x, where
// 0 means removed. A filter sets weights to zero and never removes the last one. Sums are in double and ascending order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops.h"

namespace quire::cpu {

struct Distribution {
  const float* logits = nullptr;    // [size]
  float* weights = nullptr;         // [size]
  std::int64_t size = 0;            // V
  std::int32_t* scratch = nullptr;  // [2 size] for the filters
};

// Top-k, locally typical (Meister et al. 2022, arXiv:2202.00666, algorithm 1), top-p (Holtzman et al. 2020, arXiv:1904.09751)
// and min-p (Nguyen et al. 2024, arXiv:2407.01082), in this order, those that `row` asks for.
void apply_filters(const SampleRow& row, const Distribution& distribution);
bool has_filters(const SampleRow& row);

// A draw sums weights by blocks of this many tokens first.
inline constexpr std::int64_t kDrawBlock = 1024;

// The token at which the running sum of weights, in order of ids, exceeds `uniform` (in [0, 1)) times the whole. Its weight is
// positive. `block_sums[i]`: the sum of weights [i * kDrawBlock, ...). REQUIRES: a positive weight.
std::int32_t draw(const Distribution& distribution, const double* block_sums, double uniform);

// Working memory of one thread that samples: its piece of sample_scratch_bytes().
struct SampleBuffer {
  SampleBuffer(void* scratch, std::int64_t vocabulary, int thread);

  double* block_sums;  // [ceil(V / kDrawBlock)]
  float* logits;       // [V]
  float* weights;      // [V]
  std::int32_t* ids;   // [2 V]
};

}  // namespace quire::cpu
