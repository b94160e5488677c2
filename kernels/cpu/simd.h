// F32x16: sixteen logical float lanes, the unit in which every float kernel is written. One implementation per instruction
// set, all with the same bits: each operation is one correctly rounded IEEE operation per lane, fma included, and sums of lanes
// go through one fixed tree. No operation may be contracted or reordered by the compiler (-ffp-contract=off).
#pragma once

#include "kernels/cpu/isa.h"
#if QUIRE_ISA_AVX512
#include "kernels/cpu/simd_avx512.h"
#elif QUIRE_ISA_AVX2
#include "kernels/cpu/simd_avx2.h"
#else
#include "kernels/cpu/simd_portable.h"
#endif

namespace quire::cpu::QUIRE_ISA {

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
