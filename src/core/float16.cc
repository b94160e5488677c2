#include "core/float16.h"

#include <bit>

namespace quire {

float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t{half & 0x8000u} << 16;
  const std::uint32_t exponent = half >> 10 & 31u;
  const std::uint32_t mantissa = half & 0x3FFu;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24, exact
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  if (exponent == 31) {  // a NaN becomes quiet, as conversion instructions make it
    return std::bit_cast<float>(sign | 0x7F800000u | mantissa << 13 | (mantissa != 0 ? 0x400000u : 0u));
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

std::uint16_t float_to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  const auto with_sign = [sign](std::uint32_t half) { return static_cast<std::uint16_t>(sign | half); };
  if (magnitude > 0x7F800000u) return with_sign(0x7E00u | (magnitude >> 13 & 0x1FFu));
  if (magnitude >= 0x477FF000u) return with_sign(0x7C00u);  // 65520 and above
  if (magnitude < 0x38800000u) {                            // below 2^-14: the float unit rounds to multiples of 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return with_sign(std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0.5f));
  }
  const std::uint32_t rounded = magnitude + 0xFFFu + (magnitude >> 13 & 1u);
  return with_sign((rounded >> 13) - (112u << 10));
}

float bfloat16_to_float(std::uint16_t value) { return std::bit_cast<float>(std::uint32_t{value} << 16); }

std::uint16_t float_to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace quire
