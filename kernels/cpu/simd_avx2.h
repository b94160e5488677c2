// F32x16 as two vectors of eight lanes. For simd.h alone.
#pragma once

#include "kernels/cpu/simd_x86.h"

namespace quire::cpu::QUIRE_ISA {

struct F32x16 {
  __m256 lo, hi;  // lanes 0-7, 8-15

  static F32x16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static F32x16 set1(float a) { return {_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
  static F32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static F32x16 load_f16(const std::uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
  }
  static F32x16 load_bf16(const std::uint16_t* p) {
    const auto widen = [](const std::uint16_t* q) {
      return _mm256_castsi256_ps(
          _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q))), 16));
    };
    return {widen(p), widen(p + 8)};
  }
  void store(float* p) const {
    _mm256_storeu_ps(p, lo);
    _mm256_storeu_ps(p + 8, hi);
  }
};

inline F32x16 operator+(F32x16 a, F32x16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline F32x16 operator-(F32x16 a, F32x16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline F32x16 operator*(F32x16 a, F32x16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline F32x16 operator/(F32x16 a, F32x16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
// a * b + c, rounded once.
inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
// a > b ? a : b per lane; b if either is NaN (the rule of the machine instruction, kept by every variant).
inline F32x16 max(F32x16 a, F32x16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline F32x16 min(F32x16 a, F32x16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
// a < b ? x : y per lane; y if a or b is NaN.
inline F32x16 select_less(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
  return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
// a is NaN ? a : y per lane.
inline F32x16 keep_nan(F32x16 a, F32x16 y) {
  return {_mm256_blendv_ps(y.lo, a.lo, _mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q)),
          _mm256_blendv_ps(y.hi, a.hi, _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q))};
}
inline F32x16 round_even(F32x16 a) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, kMode), _mm256_round_ps(a.hi, kMode)};
}
// 2^n for integral n in [-126, 127].
inline F32x16 exp2_integral(F32x16 n) {
  const auto one = [](__m256 v) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(v), _mm256_set1_epi32(127)), 23));
  };
  return {one(n.lo), one(n.hi)};
}

// Sum of the lanes: lane l takes lane l + 8, then + 4, then + 2, then + 1.
inline float reduce_add(F32x16 a) { return reduce_add(_mm256_add_ps(a.lo, a.hi)); }
// The sums of four vectors at once, by the same tree.
inline void reduce_add4(const F32x16* a, float* sums) {
  const auto eight = [&](int i) { return _mm256_add_ps(a[i].lo, a[i].hi); };
  _mm_storeu_ps(sums, reduce_add4(eight(0), eight(1), eight(2), eight(3)));
}

}  // namespace quire::cpu::QUIRE_ISA
