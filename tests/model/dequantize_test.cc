#include "model/dequantize.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "tests/support/expect_error.h"
#include "tests/support/quantize.h"

namespace quire {
namespace {

constexpr DType kQuantized[] = {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                                DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

// Blocks written out by hand, one element of each place that a layout has.
TEST(Dequantize, FollowsTheLayouts) {
  std::vector<std::uint8_t> block(256, 0);
  float y[256];
  const auto half = [&block](std::size_t at, std::uint16_t value) { std::memcpy(&block[at], &value, 2); };
  const auto fresh = [&block] { std::fill(block.begin(), block.end(), 0); };

  half(0, 0x4000);  // 2
  block[2 + 3] = 0x9F;
  dequantize_row(DType::kQ4_0, block.data(), y, 32);
  EXPECT_EQ(y[3], 14.0f);
  EXPECT_EQ(y[19], 2.0f);
  EXPECT_EQ(y[0], -16.0f);

  fresh();
  half(0, 0x4000);
  half(2, 0x3C00);  // 1
  block[4 + 3] = 0x9F;
  dequantize_row(DType::kQ4_1, block.data(), y, 32);
  EXPECT_EQ(y[3], 31.0f);
  EXPECT_EQ(y[19], 19.0f);
  EXPECT_EQ(y[0], 1.0f);

  fresh();
  half(0, 0x4000);
  block[2] = 1 << 3;      // fifth bit of element 3
  block[2 + 2] = 1 << 4;  // of element 20
  block[6 + 4] = 0x20;    // nibble of element 20
  dequantize_row(DType::kQ5_0, block.data(), y, 32);
  EXPECT_EQ(y[3], 0.0f);
  EXPECT_EQ(y[20], 4.0f);
  EXPECT_EQ(y[0], -32.0f);

  fresh();
  half(0, 0x3C00);
  block[2 + 31] = 0xFF;
  dequantize_row(DType::kQ8_0, block.data(), y, 32);
  EXPECT_EQ(y[31], -1.0f);

  fresh();
  half(208, 0x3C00);
  block[192 + 15] = 0xFE;       // scale -2 of the last 16
  block[64 + 32 + 31] = 0x30;   // high nibble of the second half: element 255
  block[128 + 32 + 31] = 0x80;  // its upper bits
  dequantize_row(DType::kQ6_K, block.data(), y, 256);
  EXPECT_EQ(y[255], -6.0f);  // 2 << 4 | 3 = 35, less 32, times -2
  EXPECT_EQ(y[254], 64.0f);
  EXPECT_EQ(y[0], 0.0f);
}

TEST(Dequantize, FollowsTheSixBitScales) {
  std::vector<std::uint8_t> block(176, 0);
  const std::uint16_t one = 0x3C00;
  std::memcpy(&block[0], &one, 2);
  std::memcpy(&block[2], &one, 2);
  block[4 + 1] = 0xC0 | 5;  // scale of sub-block 1: 5; upper bits of 5's scale
  block[4 + 5] = 0x80 | 7;  // minimum of sub-block 1: 7; upper bits of 5's minimum
  block[4 + 9] = 0x2A;      // sub-block 5: scale 3 << 4 | 10 = 58, minimum 2 << 4 | 2 = 34
  float y[256];
  block[16 + 31] = 0x30;  // Q4_K: sub-block 1, last element: 3
  block[16 + 64] = 0x10;  // sub-block 5, first element: 1
  dequantize_row(DType::kQ4_K, block.data(), y, 256);
  EXPECT_EQ(y[63], 5.0f * 3 - 7);
  EXPECT_EQ(y[62], -7.0f);
  EXPECT_EQ(y[160], 58.0f - 34);
  EXPECT_EQ(y[0], 0.0f);
  std::fill(block.begin() + 16, block.end(), 0);
  block[16] = 1 << 5;  // Q5_K: fifth bit of sub-block 5, first element
  block[48 + 64] = 0x10;
  dequantize_row(DType::kQ5_K, block.data(), y, 256);
  EXPECT_EQ(y[160], 58.0f * 17 - 34);
  EXPECT_EQ(y[161], -34.0f);
}

TEST(Dequantize, TakesUnalignedRowsOfManyBlocks) {
  std::mt19937 random(7);
  for (const DType type : kQuantized) {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(row_bytes(type, 1024)) + 1);
    for (auto& b : bytes) b = static_cast<std::uint8_t>(random());
    std::vector<float> whole(1024), block(static_cast<std::size_t>(block_elements(type)));
    dequantize_row(type, bytes.data() + 1, whole.data(), 1024);
    const auto n = static_cast<std::size_t>(block_elements(type));
    for (std::size_t i = 0; i < 1024 / n; ++i) {
      const std::vector<std::uint8_t> aligned(bytes.begin() + 1 + static_cast<std::ptrdiff_t>(i) * block_bytes(type),
                                              bytes.end());
      dequantize_row(type, aligned.data(), block.data(), block_elements(type));
      EXPECT_EQ(std::memcmp(block.data(), whole.data() + i * n, n * sizeof(float)), 0) << to_string(type) << i;
    }
  }
}

TEST(Dequantize, RefusesOtherTypesAndParts) {
  float y[32] = {};
  EXPECT_ERROR(dequantize_row(DType::kI32, y, y, 1), ErrorCode::kInternal, "I32");
  EXPECT_ERROR(dequantize_row(DType::kQ4_0, y, y, 31), ErrorCode::kInternal, "31 elements of Q4_0");
}

// The test quantisers keep what their bits allow, so they and the formulas agree on every field.
TEST(Quantize, KeepsValuesWithinHalfAStep) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  const std::pair<DType, float> allowed[] = {{DType::kQ4_0, 0.08f}, {DType::kQ4_1, 0.06f},  {DType::kQ5_0, 0.04f},
                                             {DType::kQ5_1, 0.03f}, {DType::kQ8_0, 0.005f}, {DType::kQ4_K, 0.08f},
                                             {DType::kQ5_K, 0.06f}, {DType::kQ6_K, 0.04f}};
  for (const auto& [type, share] : allowed) {
    std::vector<float> values(2048);
    float largest = 0.0f;
    for (float& v : values) largest = std::max(largest, std::abs(v = normal(random)));
    const auto kept = test::dequantize(type, test::quantize(type, values));
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(kept[i], values[i], share * largest) << to_string(type) << i;
  }
}

}  // namespace
}  // namespace quire
