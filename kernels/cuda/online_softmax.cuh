// The softmax of attention, one tile of scores after the other (Milakov & Gimelshein 2018, arXiv:1805.02867, alg. 3; Dao 2023,
// arXiv:2307.08691, alg. 1): running maximum and sum of the rows of one 16-row fragment, and the output that goes with them.
// Lane 4g + t holds rows g and g + 8. The maximum is the row's, the sum the lane's share of it until finish().
//
// A tile whose scores are all -infinity for a row changes no bit of the row: the maximum stays, the factor is exp2(0) = 1 or
// multiplies zeros. Every operation below is written so that a compiler has nothing to contract, hence a row's bits do not
// depend on the instance of the kernel that computes it.
#pragma once

#include <cmath>

#include "kernels/cuda/common.cuh"

namespace quire::cuda {

struct OnlineSoftmax {
  float max[2] = {-INFINITY, -INFINITY};  // of rows g and g + 8, in units of the scores
  float sum[2] = {0.0f, 0.0f};

  // scores [16, 8 kFragments] become exp(score - max), of which the sum is kept; out [16, 8 kOut] is rescaled to the new maximum.
  // `exponent` is log2(e) times the scale of the scores, above 0.
  template <int kFragments, int kOut>
  QUIRE_DEVICE void absorb(float (&scores)[kFragments][4], float (&out)[kOut][4], float exponent) {
    float factors[2];
    QUIRE_UNROLL
    for (int row = 0; row < 2; ++row) {
      const float top = row_max(scores, row);
      const float base = top == -INFINITY ? 0.0f : top;  // nothing seen yet: -infinity - 0, not -infinity + infinity
      factors[row] = exp2_approx((max[row] - base) * exponent);
      max[row] = top;
      const float shift = base * exponent;
      float tile_sum = 0.0f;
      QUIRE_UNROLL
      for (int n = 0; n < kFragments; ++n) {
        QUIRE_UNROLL
        for (int j = 2 * row; j < 2 * row + 2; ++j) {
          scores[n][j] = exp2_approx(fmaf(scores[n][j], exponent, -shift));
          tile_sum += scores[n][j];
        }
      }
      sum[row] = fmaf(sum[row], factors[row], tile_sum);
    }
    // Maxima settle after a few tiles; a product with 1 may be left out.
    if (__any_sync(kFullWarp, factors[0] != 1.0f || factors[1] != 1.0f)) {
      QUIRE_UNROLL
      for (int n = 0; n < kOut; ++n) {
        QUIRE_UNROLL
        for (int j = 0; j < 4; ++j) out[n][j] *= factors[j / 2];
      }
    }
  }

  // Adds up the lanes' shares of the sum. Call once, after the last tile.
  QUIRE_DEVICE void finish() {
    QUIRE_UNROLL
    for (int row = 0; row < 2; ++row) {
      sum[row] += __shfl_xor_sync(kFullWarp, sum[row], 1);
      sum[row] += __shfl_xor_sync(kFullWarp, sum[row], 2);
    }
  }

 private:
  template <int kFragments>
  QUIRE_DEVICE float row_max(const float (&scores)[kFragments][4], int row) const {
    float top = max[row];
    QUIRE_UNROLL
    for (int n = 0; n < kFragments; ++n) top = fmaxf(top, fmaxf(scores[n][2 * row], scores[n][2 * row + 1]));
    top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 1));
    return fmaxf(top, __shfl_xor_sync(kFullWarp, top, 2));
  }
};

// 1 / sum; a row that sees nothing has sum 0 and becomes 0. NaN stays NaN.
QUIRE_DEVICE float inverse_or_zero(float sum) { return sum == 0.0f ? 0.0f : 1.0f / sum; }

// Whether a row's element that sees an infinite value becomes infinite or NaN depends on the weights of others; so it is NaN.
QUIRE_DEVICE float nan_if_infinite(float x) { return fmaf(x, 0.0f, x); }

// log2 of the sum of exp2(score * exponent) over what was seen; -infinity if nothing was.
QUIRE_DEVICE float log2_sum(float max, float sum, float exponent) {
  return sum == 0.0f ? -INFINITY : fmaf(max, exponent, log2f(sum));
}

// cap * tanh(scale * score / cap) as cap - 2 cap / (exp(2 scale score / cap) + 1): the absolute error is some 1e-7 cap.
template <int kFragments>
QUIRE_DEVICE void soft_cap(float (&scores)[kFragments][4], float cap, float exponent) {
  QUIRE_UNROLL
  for (int n = 0; n < kFragments; ++n) {
    QUIRE_UNROLL
    for (int j = 0; j < 4; ++j) scores[n][j] = fmaf(-2.0f * cap, 1.0f / (exp2_approx(scores[n][j] * exponent) + 1.0f), cap);
  }
}

}  // namespace quire::cuda
