// What the AVX2 and the AVX-512 forms of F32x16 share: single floats and the last steps of sums over lanes. For simd.h alone.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace quire::cpu::QUIRE_ISA {

inline constexpr int kLanes = 16;

inline float fma(float a, float b, float c) { return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c))); }
inline float f16_to_f32(std::uint16_t h) { return _cvtsh_ss(h); }
inline std::uint16_t f32_to_f16(float f) {
  return static_cast<std::uint16_t>(_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(f), _MM_FROUND_TO_NEAREST_INT)) & 0xFFFF);
}

// Sum of sixteen lanes, l and l + 8 added already: lane l takes l + 4, then + 2, then + 1.
inline float reduce_add(__m256 s8) {
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
// Four such sums at once, by the same tree.
inline __m128 reduce_add4(__m256 a, __m256 b, __m256 c, __m256 d) {
  const auto halves = [](__m256 s8) { return _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1)); };
  const auto quarters = [](__m128 x, __m128 y) { return _mm_add_ps(_mm_movelh_ps(x, y), _mm_movehl_ps(y, x)); };
  const __m128 ab = quarters(halves(a), halves(b));
  const __m128 cd = quarters(halves(c), halves(d));
  const __m128 even = _mm_shuffle_ps(ab, cd, _MM_SHUFFLE(2, 0, 2, 0));
  return _mm_add_ps(even, _mm_shuffle_ps(ab, cd, _MM_SHUFFLE(3, 1, 3, 1)));
}

}  // namespace quire::cpu::QUIRE_ISA
