// The two-byte floats in software: exact widening, rounding to nearest even. NaN becomes 0x7FFF, as the cvt instructions of the
// GPU have it.
#pragma once

#include <bit>
#include <cstdint>

namespace simt {

constexpr float bfloat16_to_float(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

constexpr std::uint16_t float_to_bfloat16(float value) {
  if (value != value) return 0x7FFF;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

constexpr float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7FFFu;
  // As a float's fields the bits mean a number 2^112 times too small, subnormal ones too.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const std::uint32_t not_finite = magnitude >= 0x7C00 ? 0x7F800000 : 0;
  return std::bit_cast<float>(sign | not_finite | std::bit_cast<std::uint32_t>(scaled));
}

constexpr std::uint16_t float_to_half(float value) {
  if (value != value) return 0x7FFF;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  const std::uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude >= 0x47800000) return sign | 0x7C00;  // 65,536 and more
  std::uint32_t significand = magnitude;              // the result times 2^13 where normal
  int dropped = 13;
  if (magnitude >= 0x38800000) {  // 2^-14: a normal half; 65,520 and more carry into infinity
    significand -= 0x38000000;
  } else {
    dropped = 126 - static_cast<int>(magnitude >> 23);  // subnormal: units of 2^-24
    if (dropped > 24) return sign;                      // below half of the smallest
    significand = (magnitude & 0x7FFFFF) | 0x800000;
  }
  const std::uint32_t half_unit = 1u << (dropped - 1);
  const std::uint32_t odd = significand >> dropped & 1;
  return static_cast<std::uint16_t>(sign | (significand + half_unit - 1 + odd) >> dropped);
}

}  // namespace simt
