// The two-byte floats F16 (IEEE 754 binary16) and BF16, as bits: widening is exact, narrowing rounds to nearest, ties to even.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace quire {

float half_to_float(std::uint16_t half);
std::uint16_t float_to_half(float value);
float bfloat16_to_float(std::uint16_t value);
std::uint16_t float_to_bfloat16(float value);

// The same for a type known at run time. REQUIRES: F16 or BF16.
inline float widen(std::uint16_t bits, DType type) { return type == DType::kF16 ? half_to_float(bits) : bfloat16_to_float(bits); }
inline std::uint16_t narrow(float value, DType type) {
  return type == DType::kF16 ? float_to_half(value) : float_to_bfloat16(value);
}

}  // namespace quire
