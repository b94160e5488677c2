// Elementary functions on F32x16 and loads of part of a vector: what the float kernels share beyond simd.h.
// Each is one fixed sequence of correctly rounded operations, so it gives the same bits in every variant. The sequences and
// their measured errors stand in docs/numerics.md; tests/kernels/simd_test.cc checks them against double precision.
#pragma once

#include "kernels/cpu/simd.h"

namespace quire::cpu::QUIRE_ISA {

// The first `count` lanes from p, the others `fill`. Nothing beyond is read. REQUIRES: 0 <= count <= kLanes.
inline F32x16 load_part(const float* p, std::int64_t count, float fill = 0.0f) {
  if (count == kLanes) return F32x16::load(p);
  float lanes[kLanes];
  F32x16::set1(fill).store(lanes);
  for (std::int64_t i = 0; i < count; ++i) lanes[i] = p[i];
  return F32x16::load(lanes);
}

// Writes the first `count` lanes. REQUIRES: 0 <= count <= kLanes.
inline void store_part(F32x16 a, float* p, std::int64_t count) {
  if (count == kLanes) return a.store(p);
  float lanes[kLanes];
  a.store(lanes);
  for (std::int64_t i = 0; i < count; ++i) p[i] = lanes[i];
}

// x = n ln 2 + r with |r| <= ln 2 / 2 and n integral, kept in [low, high] (then r is what is left). ln 2 is split in two, the
// first part short enough for n times it to be exact.
struct ExpArgument {
  F32x16 n, r;
};
inline ExpArgument reduce_exp_argument(F32x16 x, float low, float high) {
  const F32x16 n = min(max(round_even(x * F32x16::set1(0x1.715476p+0f)), F32x16::set1(low)), F32x16::set1(high));
  const F32x16 r = fma(n, F32x16::set1(-0x1.62e000p-1f), x);
  return {n, fma(n, F32x16::set1(-0x1.0bfbe8p-15f), r)};
}

// (e^r - 1 - r) / r^2 for |r| <= ln 2 / 2: minimax of degree 4, weighted for a relative error of e^r below 0.06 * 2^-24.
inline F32x16 exp_polynomial(F32x16 r) {
  F32x16 q = F32x16::set1(0x1.6a23d0p-10f);
  q = fma(q, r, F32x16::set1(0x1.123a20p-7f));
  q = fma(q, r, F32x16::set1(0x1.5558f2p-5f));
  q = fma(q, r, F32x16::set1(0x1.555492p-3f));
  return fma(q, r, F32x16::set1(0x1.fffffcp-2f));
}

// e^x over the whole range: subnormal results are rounded once, below -104 it is 0, above 88.73 infinity; NaN stays NaN.
inline F32x16 exp(F32x16 x) {
  x = max(F32x16::set1(-104.0f), x);  // in this order NaN comes through
  const auto [n, r] = reduce_exp_argument(x, -151.0f, 128.0f);
  const F32x16 one = F32x16::set1(1.0f);
  const F32x16 p = fma(fma(exp_polynomial(r), r, one), r, one);
  const F32x16 half = round_even(n * F32x16::set1(0.5f));  // 2^n in two factors, as n may leave the range of one
  return p * exp2_integral(half) * exp2_integral(n - half);
}

// tanh x = t / (t + 2) with t = e^2x - 1, accurate near 0 too, since t is built without cancellation.
inline F32x16 tanh(F32x16 x) {
  x = min(F32x16::set1(10.0f), max(F32x16::set1(-10.0f), x));  // beyond, the result is +-1
  const auto [n, r] = reduce_exp_argument(x + x, -29.0f, 29.0f);
  const F32x16 p = fma(exp_polynomial(r) * r, r, r);  // e^r - 1
  const F32x16 scale = exp2_integral(n);
  const F32x16 t = fma(scale, p, scale - F32x16::set1(1.0f));
  return t / (t + F32x16::set1(2.0f));
}

// x sigmoid(x) = x / (1 + e^-x).
inline F32x16 silu(F32x16 x) { return x / (F32x16::set1(1.0f) + exp(F32x16::zero() - x)); }

// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
inline F32x16 gelu_tanh(F32x16 x) {
  const F32x16 cubic = fma(x * x * x, F32x16::set1(0.044715f), x);
  const F32x16 t = tanh(cubic * F32x16::set1(0.7978845608f));
  return x * F32x16::set1(0.5f) * (F32x16::set1(1.0f) + t);
}

// cap * tanh(x / cap).
inline F32x16 softcapped(F32x16 x, F32x16 cap) { return cap * tanh(x / cap); }

}  // namespace quire::cpu::QUIRE_ISA
