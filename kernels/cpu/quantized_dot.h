// Quantised weights times 8-bit activations, one row of weights at a time: the definition, which faster forms must meet to the
// bit. One float chain per result, over the blocks of 32 in ascending order; the sums within a block are exact integers. See
// docs/numerics.md, "Products with quantised weights".
#pragma once

#include "kernels/cpu/matmul_tile.h"
#include "kernels/cpu/panel_row.h"

namespace quire::cpu::QUIRE_ISA {

template <DType kType>
inline std::int32_t integer_dot(const WeightBlock& w, const ActivationBlock& x) {
  std::int32_t half[2];
  for (int h = 0; h < 2; ++h) {
    std::int32_t sum = 0;
    for (int i = 16 * h; i < 16 * h + 16; ++i) sum += w.q[i] * x.q[i];
    half[h] = sum;
  }
  if constexpr (has_half_scales(kType)) return w.half_scale[0] * half[0] + w.half_scale[1] * half[1];
  return half[0] + half[1];
}

// unpack(i, b, w): block b of row i of the tile's weights.
template <DType kType, typename Unpack>
inline void multiply_row_by_row(const Tile& t, const Unpack& unpack) {
  const std::int64_t num_blocks = t.inner / kBlock;
  for (int i = 0; i < t.num_weights; ++i) {
    float sum[kTileRows] = {};
    for (std::int64_t b = 0; b < num_blocks; ++b) {
      WeightBlock w;
      unpack(i, b, w);
      for (int r = 0; r < t.num_rows; ++r) {
        const ActivationBlock& x = t.blocks[r * num_blocks + b];
        sum[r] = fma(w.d * x.d, static_cast<float>(integer_dot<kType>(w, x)), sum[r]);
        if constexpr (has_minimum(kType)) sum[r] = fma(w.m, x.d_sum, sum[r]);
      }
    }
    for (int r = 0; r < t.num_rows; ++r) t.out[r * t.out_stride + i] = t.bias != nullptr ? sum[r] + t.bias[i] : sum[r];
  }
}

}  // namespace quire::cpu::QUIRE_ISA
