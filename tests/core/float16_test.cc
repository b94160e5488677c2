#include "core/float16.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

namespace quire {
namespace {

TEST(Half, ConvertsEveryValueThereAndBack) {
  for (std::uint32_t h = 0; h < 65536; ++h) {
    const auto half = static_cast<std::uint16_t>(h);
    const float value = half_to_float(half);
    if ((h & 0x7FFF) > 0x7C00) {
      ASSERT_TRUE(std::isnan(value)) << h;
      ASSERT_TRUE(std::isnan(half_to_float(float_to_half(value)))) << h;
      continue;
    }
    const int exponent = static_cast<int>(h >> 10 & 31);
    const double mantissa = (h & 1023) / 1024.0;
    double expected = exponent == 0 ? std::ldexp(mantissa, -14) : std::ldexp(1.0 + mantissa, exponent - 15);
    if (exponent == 31) expected = INFINITY;
    ASSERT_EQ(value, h >> 15 ? -expected : expected) << h;
    ASSERT_EQ(std::signbit(value), h >> 15 != 0) << h;
    ASSERT_EQ(float_to_half(value), half) << h;
  }
}

TEST(Half, RoundsToNearestEven) {
  EXPECT_EQ(float_to_half(1.0f + 0x1p-11f), 0x3C00);      // halfway, to even
  EXPECT_EQ(float_to_half(1.0f + 0x3p-11f), 0x3C02);      // halfway, to even
  EXPECT_EQ(float_to_half(1.0f + 0x1.002p-11f), 0x3C01);  // above halfway
  EXPECT_EQ(float_to_half(65519.996f), 0x7BFF);
  EXPECT_EQ(float_to_half(65520.0f), 0x7C00);
  EXPECT_EQ(float_to_half(-1e30f), 0xFC00);
  EXPECT_EQ(float_to_half(0x1p-25f), 0x0000);  // halfway to the least subnormal
  EXPECT_EQ(float_to_half(0x1.8p-25f), 0x0001);
  EXPECT_EQ(float_to_half(0x1.8p-24f), 0x0002);
  EXPECT_EQ(float_to_half(0x1.ffbp-15f), 0x03FF);  // nearest is the largest subnormal
  EXPECT_EQ(float_to_half(0x1.ffcp-15f), 0x0400);  // halfway to the least normal
}

TEST(Bfloat16, RoundsToNearestEven) {
  EXPECT_EQ(float_to_bfloat16(1.0f + 0x1p-8f), 0x3F80);
  EXPECT_EQ(float_to_bfloat16(1.0f + 0x3p-8f), 0x3F82);
  EXPECT_EQ(float_to_bfloat16(std::bit_cast<float>(0x7F7FFFFFu)), 0x7F80);
  EXPECT_EQ(float_to_bfloat16(std::bit_cast<float>(0x7F800001u)) & 0x7FC0, 0x7FC0) << "a NaN stays one";
  EXPECT_EQ(bfloat16_to_float(0xC040), -3.0f);
}

}  // namespace
}  // namespace quire
