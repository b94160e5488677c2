// F32x16: sixteen logical float lanes, the unit in which every float kernel is written. One implementation per instruction
// set, all with the same bits: each operation is one correctly rounded IEEE operation per lane, fma included, and sums of lanes
// go through one fixed tree. No operation may be contracted or reordered by the compiler (-ffp-contract=off).
#pragma once

#include "kernels/cpu/isa.h"

#include <cstdint>

#if QUIRE_ISA_AVX2
#include <immintrin.h>
#else
#include <cmath>
#include <cstring>
#endif

namespace quire::cpu::QUIRE_ISA {

inline constexpr int kLanes = 16;

#if QUIRE_ISA_AVX2

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
inline float fma(float a, float b, float c) { return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c))); }
inline float f16_to_f32(std::uint16_t h) { return _cvtsh_ss(h); }
inline std::uint16_t f32_to_f16(float f) {
  return static_cast<std::uint16_t>(_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(f), _MM_FROUND_TO_NEAREST_INT)) & 0xFFFF);
}

// Sum of the lanes: lane l takes lane l + 8, then + 4, then + 2, then + 1.
inline float reduce_add(F32x16 a) {
  const __m256 s8 = _mm256_add_ps(a.lo, a.hi);
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
// The sums of four vectors at once, by the same tree.
inline void reduce_add4(const F32x16 (&a)[4], float* sums) {
  __m128 s4[4];
  for (int i = 0; i < 4; ++i) {
    const __m256 s8 = _mm256_add_ps(a[i].lo, a[i].hi);
    s4[i] = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  }
  const __m128 s2_01 = _mm_add_ps(_mm_movelh_ps(s4[0], s4[1]), _mm_movehl_ps(s4[1], s4[0]));
  const __m128 s2_23 = _mm_add_ps(_mm_movelh_ps(s4[2], s4[3]), _mm_movehl_ps(s4[3], s4[2]));
  const __m128 even = _mm_shuffle_ps(s2_01, s2_23, _MM_SHUFFLE(2, 0, 2, 0));
  _mm_storeu_ps(sums, _mm_add_ps(even, _mm_shuffle_ps(s2_01, s2_23, _MM_SHUFFLE(3, 1, 3, 1))));
}

#else

inline float bits_to_float(std::uint32_t u) {
  float f;
  std::memcpy(&f, &u, sizeof f);
  return f;
}
inline std::uint32_t float_to_bits(float f) {
  std::uint32_t u;
  std::memcpy(&u, &f, sizeof u);
  return u;
}
inline float fma(float a, float b, float c) { return std::fma(a, b, c); }

// IEEE half to float, exact; signalling NaNs become quiet, as the machine does it.
inline float f16_to_f32(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16;
  const std::uint32_t exponent = (h >> 10) & 31u;
  const std::uint32_t mantissa = h & 1023u;
  if (exponent == 31) return bits_to_float(sign | 0x7f800000u | (mantissa << 13) | (mantissa != 0 ? 0x400000u : 0u));
  if (exponent != 0) return bits_to_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return bits_to_float(sign | float_to_bits(magnitude));
}

// Float to half, to nearest even; overflow to infinity, underflow through subnormals.
inline std::uint16_t f32_to_f16(float f) {
  const std::uint32_t u = float_to_bits(f);
  const std::uint32_t sign = (u >> 16) & 0x8000u;
  const std::uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x47800000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // 65536 and above
  if (magnitude < 0x38800000u) {                                                    // below the smallest normal half
    const float scaled = bits_to_float(magnitude) * 0x1p24f;                        // exact
    return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(std::nearbyint(scaled)));
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

struct F32x16 {
  float v[kLanes];

  static F32x16 zero() { return set1(0.0f); }
  static F32x16 set1(float a) {
    F32x16 r;
    for (float& x : r.v) x = a;
    return r;
  }
  static F32x16 load(const float* p) {
    F32x16 r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
  }
  static F32x16 load_f16(const std::uint16_t* p) {
    F32x16 r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = f16_to_f32(p[i]);
    return r;
  }
  static F32x16 load_bf16(const std::uint16_t* p) {
    F32x16 r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = bits_to_float(static_cast<std::uint32_t>(p[i]) << 16);
    return r;
  }
  void store(float* p) const { std::memcpy(p, v, sizeof v); }
};

template <typename F>
inline F32x16 lanewise(F f) {
  F32x16 r;
  for (int i = 0; i < kLanes; ++i) r.v[i] = f(i);
  return r;
}
inline F32x16 operator+(const F32x16& a, const F32x16& b) {
  return lanewise([&](int i) { return a.v[i] + b.v[i]; });
}
inline F32x16 operator-(const F32x16& a, const F32x16& b) {
  return lanewise([&](int i) { return a.v[i] - b.v[i]; });
}
inline F32x16 operator*(const F32x16& a, const F32x16& b) {
  return lanewise([&](int i) { return a.v[i] * b.v[i]; });
}
inline F32x16 operator/(const F32x16& a, const F32x16& b) {
  return lanewise([&](int i) { return a.v[i] / b.v[i]; });
}
inline F32x16 fma(const F32x16& a, const F32x16& b, const F32x16& c) {
  return lanewise([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
}
inline F32x16 max(const F32x16& a, const F32x16& b) {
  return lanewise([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline F32x16 min(const F32x16& a, const F32x16& b) {
  return lanewise([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline F32x16 select_less(const F32x16& a, const F32x16& b, const F32x16& x, const F32x16& y) {
  return lanewise([&](int i) { return a.v[i] < b.v[i] ? x.v[i] : y.v[i]; });
}
inline F32x16 keep_nan(const F32x16& a, const F32x16& y) {
  return lanewise([&](int i) { return a.v[i] != a.v[i] ? a.v[i] : y.v[i]; });
}
inline F32x16 round_even(const F32x16& a) {
  return lanewise([&](int i) { return std::nearbyint(a.v[i]); });
}
inline F32x16 exp2_integral(const F32x16& n) {
  return lanewise(
      [&](int i) { return bits_to_float(static_cast<std::uint32_t>(static_cast<std::int32_t>(n.v[i]) + 127) << 23); });
}
inline float reduce_add(const F32x16& a) {
  float s[kLanes];
  std::memcpy(s, a.v, sizeof s);
  for (int width = kLanes / 2; width >= 1; width /= 2)
    for (int i = 0; i < width; ++i) s[i] = s[i] + s[i + width];
  return s[0];
}
inline void reduce_add4(const F32x16 (&a)[4], float* sums) {
  for (int i = 0; i < 4; ++i) sums[i] = reduce_add(a[i]);
}

#endif

// bfloat16, to nearest even; NaN stays a quiet NaN.
inline std::uint16_t f32_to_bf16(float f) {
  std::uint32_t u;
  __builtin_memcpy(&u, &f, sizeof u);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((u >> 16) | 0x40u);
  return static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
inline float bf16_to_f32(std::uint16_t b) {
  const std::uint32_t u = static_cast<std::uint32_t>(b) << 16;
  float f;
  __builtin_memcpy(&f, &u, sizeof f);
  return f;
}

}  // namespace quire::cpu::QUIRE_ISA
