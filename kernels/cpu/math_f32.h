// Elementary functions on sixteen lanes: our own, so that every instruction set and every C library gives the same bits.
// Formulas and error bounds: docs/numerics.md.
#pragma once

#include "kernels/cpu/simd.h"

namespace quire::cpu::QUIRE_ISA {

// e^x. x < -87.33654: 0. x > 88.37626: infinity. NaN: NaN. Elsewhere within 1 unit in the last place (measured over all floats by
// tests/kernels/math_f32_test.cc). Cody and Waite's reduction, and the polynomial of Cephes' expf (Moshier) for the rest.
inline F32x16 exp(F32x16 x) {
  const F32x16 low = F32x16::set1(-87.33654f);
  const F32x16 high = F32x16::set1(88.37626f);
  const F32x16 inside = min(max(x, low), high);
  const F32x16 n = round_even(inside * F32x16::set1(1.44269504088896341f));
  F32x16 r = fma(n, F32x16::set1(-0.693359375f), inside);
  r = fma(n, F32x16::set1(2.12194440e-4f), r);
  F32x16 p = F32x16::set1(1.9875691500e-4f);
  p = fma(p, r, F32x16::set1(1.3981999507e-3f));
  p = fma(p, r, F32x16::set1(8.3334519073e-3f));
  p = fma(p, r, F32x16::set1(4.1665795894e-2f));
  p = fma(p, r, F32x16::set1(1.6666665459e-1f));
  p = fma(p, r, F32x16::set1(5.0000001201e-1f));
  const F32x16 e = fma(p, r * r, r) + F32x16::set1(1.0f);
  F32x16 result = e * exp2_integral(n);
  result = select_less(x, low, F32x16::zero(), result);
  result = select_less(high, x, F32x16::set1(__builtin_inff()), result);
  return keep_nan(x, result);
}

// (e^2x - 1) / (e^2x + 1) with x clamped to [-10, 10], where tanh is 1 in float. Absolute error under 1e-7.
inline F32x16 tanh(F32x16 x) {
  const F32x16 inside = min(max(x, F32x16::set1(-10.0f)), F32x16::set1(10.0f));
  const F32x16 e = exp(inside + inside);
  const F32x16 one = F32x16::set1(1.0f);
  return keep_nan(x, (e - one) / (e + one));
}

}  // namespace quire::cpu::QUIRE_ISA
