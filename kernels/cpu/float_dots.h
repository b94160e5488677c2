// Products of some rows of floats with some others in sixteen lanes (docs/numerics.md): the inner loop of float weights and of
// the scores of many query rows. x86 sources only.
#pragma once

#include "kernels/cpu/lanes.h"

namespace quire::cpu::QUIRE_ISA {

inline constexpr int kDotVectors = kLanes / kWidth;  // vectors that hold sixteen lanes
inline constexpr int kMostDots = 4;                  // rows of either side

using LaneSums = Floats[kMostDots][kMostDots][kDotVectors];  // [row of b][row of a]

#if QUIRE_ISA_AVX512
inline F32x16 joined(const Floats* v) { return {v[0]}; }
inline void load_once(Floats&) {}
#else
inline F32x16 joined(const Floats* v) { return {v[0], v[1]}; }
// GCC 12 would read the row anew for every fma: sixteen loads for twelve of them.
inline void load_once(Floats& row) { asm("" : "+x"(row)); }
#endif

// Adds the products of the sixteen elements at a [kA] and b [kB], whose rows lie `a_stride` and `b_stride` apart.
template <int kA, int kB>
[[gnu::always_inline]] inline void add_dots(const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride,
                                            LaneSums& sums) {
  for (int v = 0; v < kDotVectors; ++v, a += kWidth, b += kWidth) {
    Floats row_a[kMostDots];
    for (int i = 0; i < kA; ++i) row_a[i] = load_floats(a + i * a_stride);
    for (int j = 0; j < kB; ++j) {
      Floats row_b = load_floats(b + j * b_stride);
      load_once(row_b);
      for (int i = 0; i < kA; ++i) sums[j][i][v] = fma(row_a[i], row_b, sums[j][i][v]);
    }
  }
}

}  // namespace quire::cpu::QUIRE_ISA
