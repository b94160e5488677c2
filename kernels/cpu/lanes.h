// Loops over a row in steps of sixteen lanes: element i is in lane i mod 16, and a last, shorter step is filled up with zeros,
// which no reduction here can tell from nothing. Element types of KV rows are widened on the way.
#pragma once

#include "core/dtype.h"
#include "kernels/cpu/simd.h"

namespace quire::cpu::QUIRE_ISA {

// How one element type is read, sixteen at a time.
struct LoadF32 {
  using Element = float;
  static F32x16 load(const float* p) { return F32x16::load(p); }
};
struct LoadF16 {
  using Element = std::uint16_t;
  static F32x16 load(const std::uint16_t* p) { return F32x16::load_f16(p); }
};
struct LoadBF16 {
  using Element = std::uint16_t;
  static F32x16 load(const std::uint16_t* p) { return F32x16::load_bf16(p); }
};

// The first `count` (1 to 16) elements at p, then zeros. Reads no further than them.
template <typename Load>
inline F32x16 load_some(const typename Load::Element* p, std::int64_t count) {
  if (count >= kLanes) return Load::load(p);
  typename Load::Element padded[kLanes] = {};
  for (std::int64_t i = 0; i < count; ++i) padded[i] = p[i];
  return Load::load(padded);
}

inline void store_some(F32x16 value, float* p, std::int64_t count) {
  if (count >= kLanes) {
    value.store(p);
    return;
  }
  float all[kLanes];
  value.store(all);
  for (std::int64_t i = 0; i < count; ++i) p[i] = all[i];
}

}  // namespace quire::cpu::QUIRE_ISA
