// The two-byte floats F16 (IEEE 754 binary16) and BF16, as bits: widening is exact, narrowing rounds to nearest, ties to even.
#pragma once

#include <cstdint>

namespace quire {

float half_to_float(std::uint16_t half);
std::uint16_t float_to_half(float value);
float bfloat16_to_float(std::uint16_t value);
std::uint16_t float_to_bfloat16(float value);

}  // namespace quire
