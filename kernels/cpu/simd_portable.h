// F32x16 in plain C++: what every operation means. For simd.h alone.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/isa.h"

namespace quire::cpu::QUIRE_ISA {

inline constexpr int kLanes = 16;

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
inline void reduce_add4(const F32x16* a, float* sums) {
  for (int i = 0; i < 4; ++i) sums[i] = reduce_add(a[i]);
}

}  // namespace quire::cpu::QUIRE_ISA
