// Every device operation against what CUDA's and PTX's manuals say, computed here on the host by their formulas. The kernels are
// in conformance.cu. What a right GPU may do differently (last bits of fast functions) is allowed for.
#include "tests/simt/conformance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "quire/error.h"
#include "simt/device_memory.h"
#include "simt/emulator.h"

namespace quire::cuda {
namespace {

template <typename T>
using Buffer = simt::DeviceBuffer<T>;

class Conformance : public testing::TestWithParam<simt::Options> {
 protected:
  simt::ScopedOptions scope_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Schedules, Conformance, testing::ValuesIn(simt::all_schedules().begin(), simt::all_schedules().end()));

// ---- warps

// PTX ISA 8.5, shfl.sync: the lane whose value `lane` gets.
int shuffled_lane(ShuffleKind kind, int lane, int operand, int width) {
  const int segment_mask = 32 - width;
  const int clamp = kind == ShuffleKind::kUp ? 0 : 31;
  const int b = operand & 31;
  const int max_lane = (lane & segment_mask) | (clamp & ~segment_mask);
  const int min_lane = lane & segment_mask;
  int j = 0;
  bool valid = false;
  switch (kind) {
    case ShuffleKind::kUp:
      j = lane - b;
      valid = j >= max_lane;
      break;
    case ShuffleKind::kDown:
      j = lane + b;
      valid = j <= max_lane;
      break;
    case ShuffleKind::kXor:
      j = lane ^ b;
      valid = j <= max_lane;
      break;
    case ShuffleKind::kIndex:
      j = min_lane | (b & ~segment_mask);
      valid = j <= max_lane;
      break;
  }
  return valid ? j : lane;
}

template <typename T>
void check_shuffles(const std::vector<T>& values) {
  std::mt19937 random(7);
  const Buffer<T> in(values);
  const Buffer<T> out(32);
  Buffer<int> operands(32);
  for (const ShuffleKind kind : {ShuffleKind::kIndex, ShuffleKind::kUp, ShuffleKind::kDown, ShuffleKind::kXor}) {
    for (int width = 1; width <= 32; width *= 2) {
      for (int round = 0; round < 4; ++round) {
        const int same = static_cast<int>(random() % 32);
        for (int& operand : operands) operand = round < 2 ? same : static_cast<int>(random() % 32);
        shuffle(kind, width, operands.data(), in.data(), out.data());
        for (int lane = 0; lane < 32; ++lane)
          ASSERT_EQ(out[lane], values[shuffled_lane(kind, lane, operands[lane], width)])
              << "kind " << static_cast<int>(kind) << " width " << width << " lane " << lane << " operand " << operands[lane];
      }
    }
  }
}

TEST_P(Conformance, Shuffles) {
  std::vector<int> values(32);
  std::iota(values.begin(), values.end(), -5);
  check_shuffles(values);
  check_shuffles(std::vector<unsigned>(values.begin(), values.end()));
  check_shuffles(std::vector<float>(values.begin(), values.end()));
  std::vector<double> doubles;
  std::vector<unsigned long long> longs;
  for (int value : values) {
    doubles.push_back(value / 3.0);
    longs.push_back(0x123456789abcdefULL * static_cast<unsigned long long>(value + 100));
  }
  check_shuffles(doubles);
  check_shuffles(longs);
}

TEST_P(Conformance, Votes) {
  std::mt19937 random(3);
  Buffer<int> predicates(32);
  const Buffer<unsigned> out(96);
  for (const unsigned votes : {0u, ~0u, 1u, 1u << 31, 0xffffu, 0xffff0000u, static_cast<unsigned>(random())}) {
    for (int lane = 0; lane < 32; ++lane)
      predicates[lane] = (votes >> lane & 1) != 0 ? 2 << lane % 8 : 0;  // any non-zero is true
    const auto expect = [&](int lane, unsigned mask) {
      EXPECT_EQ(out[lane * 3], votes & mask);
      EXPECT_EQ(out[lane * 3 + 1], (votes & mask) != 0 ? 1u : 0u);
      EXPECT_EQ(out[lane * 3 + 2], (votes & mask) == mask ? 1u : 0u);
    };
    vote(predicates.data(), out.data());
    for (int lane = 0; lane < 32; ++lane) expect(lane, ~0u);
    vote_in_halves(predicates.data(), out.data());
    for (int lane = 0; lane < 32; ++lane) expect(lane, lane < 16 ? 0xffffu : 0xffff0000u);
  }
}

// ---- blocks

TEST_P(Conformance, ThreadsKnowTheirPlaces) {
  const unsigned grid[3] = {3, 2, 2};
  const unsigned block[3] = {5, 3, 4};
  const Buffer<int> out(12 * 60 * 7);
  thread_places(grid, block, out.data());
  int at = 0;
  for (unsigned b = 0; b < 12; ++b) {
    for (unsigned t = 0; t < 60; ++t) {
      const unsigned expected[7] = {t % 5, t / 5 % 3, t / 15, b % 3, b / 3 % 2, b / 6, 32};
      for (const unsigned value : expected) ASSERT_EQ(out[at++], static_cast<int>(value)) << "block " << b << " thread " << t;
    }
  }
}

TEST_P(Conformance, StaticSharedArrays) {
  std::vector<float> values(256);
  std::iota(values.begin(), values.end(), 0.5f);
  const Buffer<float> in(values);
  const Buffer<float> out(256);
  reverse_twice(in.data(), out.data());
  std::reverse(values.begin(), values.end());
  EXPECT_EQ(out.to_host(), values);
}

TEST_P(Conformance, SharedAddresses) {
  const Buffer<int> out(8);
  shared_addresses(out.data());
  EXPECT_THAT(out.to_host(), testing::ElementsAre(0, 0, 0, 1, 60, 0, -1, -1));
}

TEST_P(Conformance, RefusedShapes) {
  const Buffer<int> out(8);
  const unsigned grid[3] = {1, 1, 1};
  const unsigned wrong[4][3] = {{1025, 1, 1}, {0, 1, 1}, {1, 1, 65}, {32, 33, 1}};
  for (const auto& block : wrong) {
    try {
      thread_places(grid, block, out.data());
      FAIL() << block[0];
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDevice);
      EXPECT_STREQ(error.what(), "kernel launch: invalid configuration argument (cudaErrorInvalidConfiguration)");
    }
  }
  const unsigned none[3] = {0, 1, 1};
  const unsigned block[3] = {1, 1, 1};
  thread_places(none, block, out.data());
  EXPECT_EQ(out[0], -1);
}

// ---- atomics

template <typename T>
void check_updates(AtomicKind kind, T initial) {
  Buffer<T> place(1);
  place[0] = initial;
  const Buffer<T> olds(256);
  atomic_update(kind, place.data(), olds.data());
  std::vector<T> numbers(256);
  std::iota(numbers.begin(), numbers.end(), T{0});
  std::vector<T> before = olds.to_host();
  std::vector<T> after;  // what each update left behind
  for (std::size_t i = 0; i < 256; ++i) {
    switch (kind) {
      case AtomicKind::kAdd:
      case AtomicKind::kCompareAndSwap:
        after.push_back(static_cast<T>(before[i] + numbers[i]));
        break;
      case AtomicKind::kMax:
        after.push_back(std::max(before[i], numbers[i]));
        break;
      case AtomicKind::kMin:
        after.push_back(std::min(before[i], numbers[i]));
        break;
      case AtomicKind::kExchange:
        after.push_back(numbers[i]);
        break;
    }
  }
  // Every value but the first was left by some update, and every value but the last was found by one.
  before.push_back(place[0]);
  after.push_back(initial);
  EXPECT_THAT(after, testing::UnorderedElementsAreArray(before));
}

TEST_P(Conformance, Atomics) {
  for (const AtomicKind kind :
       {AtomicKind::kAdd, AtomicKind::kMax, AtomicKind::kMin, AtomicKind::kExchange, AtomicKind::kCompareAndSwap}) {
    SCOPED_TRACE(static_cast<int>(kind));
    check_updates<int>(kind, 100);
    check_updates<int>(kind, -100);
    check_updates<unsigned>(kind, 100);
    check_updates<unsigned long long>(kind, 1ULL << 40);
  }
  check_updates<float>(AtomicKind::kAdd, 0.5f);
  check_updates<float>(AtomicKind::kExchange, 0.5f);
}

TEST_P(Conformance, AtomicsOnSharedMemory) {
  const Buffer<int> sums(4);
  atomic_add_shared(sums.data());
  EXPECT_THAT(sums.to_host(), testing::Each(63 * 32));
  const Buffer<float> float_sums(4);
  atomic_add_shared(float_sums.data());
  EXPECT_THAT(float_sums.to_host(), testing::Each(63.0f * 32));
}

// ---- matrices

TEST_P(Conformance, LoadsMatrices) {
  std::vector<std::uint16_t> rows(256);
  std::iota(rows.begin(), rows.end(), std::uint16_t{1000});
  std::vector<int> order(32);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(5));
  const Buffer<std::uint16_t> in(rows);
  const Buffer<int> lane_rows(order);
  const Buffer<std::uint32_t> r(128);
  for (const bool transposed : {false, true}) {
    load_matrices(transposed, in.data(), lane_rows.data(), r.data());
    for (int lane = 0; lane < 32; ++lane) {
      for (int matrix = 0; matrix < 4; ++matrix) {
        for (int half = 0; half < 2; ++half) {
          int row = lane / 4;
          int column = lane % 4 * 2 + half;
          if (transposed) std::swap(row, column);
          const auto element = static_cast<std::uint16_t>(r[lane * 4 + matrix] >> 16 * half);
          ASSERT_EQ(element, rows[order[matrix * 8 + row] * 8 + column]) << lane << " " << matrix << " " << half;
        }
      }
    }
  }
}

// The bits of a small integer, which both types hold exactly.
std::uint16_t bits_of(int type, int value) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  if (type == 1) return static_cast<std::uint16_t>(bits >> 16);
  if (value == 0) return 0;
  const auto exponent = static_cast<int>(bits >> 23 & 255) - 127 + 15;
  return static_cast<std::uint16_t>((bits >> 31) << 15 | static_cast<unsigned>(exponent) << 10 | (bits >> 13 & 0x3FF));
}

TEST_P(Conformance, MultipliesMatrices) {
  std::mt19937 random(11);
  const auto small = [&] { return static_cast<int>(random() % 9) - 4; };
  for (const int type : {0, 1}) {
    int a[16][16];
    int b[16][8];
    int c[16][8];
    for (auto& row : a) std::generate(std::begin(row), std::end(row), small);
    for (auto& row : b) std::generate(std::begin(row), std::end(row), small);
    for (auto& row : c) std::generate(std::begin(row), std::end(row), small);
    Buffer<std::uint32_t> a_fragments(128);
    Buffer<std::uint32_t> b_fragments(64);
    Buffer<float> d(128);
    // PTX ISA 8.5, "Matrix Fragments for mma.m16n8k16 with floating point type".
    const auto c_row = [](int lane, int i) { return lane / 4 + (i < 2 ? 0 : 8); };
    const auto c_column = [](int lane, int i) { return lane % 4 * 2 + (i & 1); };
    for (int lane = 0; lane < 32; ++lane) {
      const int group = lane / 4;
      const int in_group = lane % 4;
      std::uint16_t a_mine[8];
      std::uint16_t b_mine[4];
      for (int i = 0; i < 8; ++i) {
        const int row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
        const int column = in_group * 2 + (i & 1) + (i < 4 ? 0 : 8);
        a_mine[i] = bits_of(type, a[row][column]);
      }
      for (int i = 0; i < 4; ++i) b_mine[i] = bits_of(type, b[in_group * 2 + (i & 1) + (i < 2 ? 0 : 8)][group]);
      for (int i = 0; i < 4; ++i) a_fragments[lane * 4 + i] = a_mine[2 * i] | static_cast<std::uint32_t>(a_mine[2 * i + 1]) << 16;
      for (int i = 0; i < 2; ++i) b_fragments[lane * 2 + i] = b_mine[2 * i] | static_cast<std::uint32_t>(b_mine[2 * i + 1]) << 16;
      for (int i = 0; i < 4; ++i) d[lane * 4 + i] = static_cast<float>(c[c_row(lane, i)][c_column(lane, i)]);
    }
    multiply_fragments(type, a_fragments.data(), b_fragments.data(), d.data());
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        int sum = c[c_row(lane, i)][c_column(lane, i)];
        for (int k = 0; k < 16; ++k) sum += a[c_row(lane, i)][k] * b[k][c_column(lane, i)];
        ASSERT_EQ(d[lane * 4 + i], static_cast<float>(sum)) << "type " << type << " lane " << lane << " i " << i;
      }
    }
  }
}

// ---- copies and vectors

TEST_P(Conformance, CopiesPartOfSixteenBytes) {
  std::vector<unsigned char> bytes(32 * 16);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i % 251 + 1);
  const Buffer<unsigned char> in(bytes);
  Buffer<int> num_bytes(32);
  for (int lane = 0; lane < 32; ++lane) num_bytes[lane] = lane % 17;
  const Buffer<unsigned char> out(32 * 16);
  copy_partly(in.data(), num_bytes.data(), out.data());
  for (int i = 0; i < 32 * 16; ++i) ASSERT_EQ(out[i], i % 16 < num_bytes[i / 16] ? bytes[i] : 0) << i;
}

TEST_P(Conformance, CopiesInStages) {
  for (const int tiles : {1, 2, 3, 7}) {
    std::vector<float> values(tiles * 128);
    std::iota(values.begin(), values.end(), 0.0f);
    const Buffer<float> in(values);
    const Buffer<float> out(values.size());
    copy_in_stages(in.data(), out.data(), tiles);
    EXPECT_EQ(out.to_host(), values);
  }
}

TEST_P(Conformance, CopiesByVectors) {
  std::vector<float> values(512);
  std::iota(values.begin(), values.end(), 0.0f);
  const Buffer<float> in(values);
  const Buffer<float> out(values.size());
  copy_by_vectors(in.data(), out.data(), 512);
  EXPECT_EQ(out.to_host(), values);
}

TEST_P(Conformance, AddressesBeyondFourGigabytes) {
  const std::int64_t size = (std::int64_t{1} << 32) + (std::int64_t{1} << 30);
  Buffer<std::uint8_t> x(static_cast<std::size_t>(size), simt::DeviceMemory::Fill::kSparse);
  const std::int64_t first = (std::int64_t{1} << 32) - 5;
  touch_far(x.data(), first, 30'000'001);
  touch_far(x.data(), first, 30'000'001);
  for (int lane = 0; lane < 32; ++lane) EXPECT_EQ(x[static_cast<std::size_t>(first + lane * std::int64_t{30'000'001})], 2);
  EXPECT_EQ(x[static_cast<std::size_t>(first) - (std::size_t{1} << 32) + 30'000'001], 0);
}

// ---- conversions and functions

// The value of a two-byte float by its definition.
double decode(int type, std::uint16_t bits) {
  const int fraction_bits = type == 0 ? 10 : 7;
  const int exponent_bits = 15 - fraction_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1)
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

// `value` rounded to the type, to nearest even.
double rounded(int type, double value) {
  const int fraction_bits = type == 0 ? 10 : 7;
  const int min_exponent = type == 0 ? -14 : -126;
  const double limit = type == 0 ? 65520.0 : std::ldexp(511.0, 119);  // half a step above the largest
  if (value == 0 || std::isinf(value)) return value;
  if (std::abs(value) >= limit) return std::copysign(std::numeric_limits<double>::infinity(), value);
  const int unit = std::max(std::ilogb(value), min_exponent) - fraction_bits;
  return std::ldexp(std::nearbyint(std::ldexp(value, -unit)), unit);
}

TEST_P(Conformance, ConvertsAsManyAsAsked) {  // the buffers end there
  const Buffer<std::uint32_t> packed(300);
  const Buffer<float> unpacked(600);
  for (const int type : {0, 1}) {
    unpack_pairs(type, packed.data(), unpacked.data(), 300);
    pack_pairs(type, unpacked.data(), packed.data(), 300);
  }
  EXPECT_TRUE(std::isnan(unpacked[599]));
}

TEST_P(Conformance, WidensEveryTwoByteFloat) {
  std::vector<std::uint32_t> packed(1 << 15);
  for (std::uint32_t i = 0; i < packed.size(); ++i) packed[i] = i * 2 | (i * 2 + 1) << 16;
  const Buffer<std::uint32_t> in(packed);
  const Buffer<float> out(1 << 16);
  for (const int type : {0, 1}) {
    unpack_pairs(type, in.data(), out.data(), 1 << 15);
    for (std::uint32_t i = 0; i < (1 << 16); ++i) {
      const double expected = decode(type, static_cast<std::uint16_t>(i));
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(out[i])) << i;
      } else {
        ASSERT_EQ(out[i], expected) << i;
        ASSERT_EQ(std::signbit(out[i]), std::signbit(expected)) << i;
      }
    }
  }
}

// Floats beside the places where rounding changes, of all sizes and signs, and what is not a number.
std::vector<float> hard_to_round(int type) {
  std::vector<float> values = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, -NAN, 3.4e38f, -3.4e38f, 1e-45f, -1e-45f};
  for (std::uint32_t bits = 1; bits < 0x7F00; bits += type == 0 ? 13 : 17) {
    const double low = decode(type, static_cast<std::uint16_t>(bits));
    const double high = decode(type, static_cast<std::uint16_t>(bits + 1));
    if (!std::isfinite(high)) break;
    const auto middle = static_cast<float>((low + high) / 2);
    for (const float value : {static_cast<float>(low), middle, std::nextafter(middle, 0.0f), std::nextafter(middle, INFINITY)}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    values.push_back(std::isnan(value) ? 1.0f : value);
  }
  if (values.size() % 2 != 0) values.push_back(65519.0f);
  return values;
}

TEST_P(Conformance, RoundsToNearestEven) {
  for (const int type : {0, 1}) {
    const std::vector<float> values = hard_to_round(type);
    const Buffer<float> in(values);
    const Buffer<std::uint32_t> out(values.size() / 2);
    pack_pairs(type, in.data(), out.data(), static_cast<int>(values.size() / 2));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto bits = static_cast<std::uint16_t>(out[i / 2] >> (i % 2 * 16));
      if (std::isnan(values[i])) {
        ASSERT_EQ(bits, 0x7FFF);
        continue;
      }
      ASSERT_EQ(decode(type, bits), rounded(type, values[i])) << "type " << type << " value " << values[i];
      ASSERT_EQ(bits >> 15 != 0, std::signbit(values[i])) << values[i];
    }
  }
}

TEST_P(Conformance, FloatFunctions) {
  const std::vector<float> values = {0.03125f, 0.1f, 0.49f, 0.5f, 0.75f, 1.0f, 1.5f, 2.5f, 3.5f, 3.14159f, 10.0f, 20.25f};
  const int n = static_cast<int>(values.size());
  const Buffer<float> x(values);
  Buffer<float> out(values.size() * kNumFloatFunctions);
  float_functions(x.data(), out.data(), n);
  for (int i = 0; i < n; ++i) {
    const double v = values[i];
    const double expected[kNumFloatFunctions] = {std::exp2(v), std::exp(v),      1 / std::sqrt(v), std::log(v),      1 / v,
                                                 v * v + 1,    std::max(v, 0.5), std::min(v, 0.5), std::nearbyint(v)};
    for (int f = 0; f < kNumFloatFunctions; ++f)
      EXPECT_NEAR(out[i * kNumFloatFunctions + f], expected[f],
                  f < 5 ? 4e-6 * std::abs(expected[f]) + 4e-7 : std::abs(expected[f]) * 6e-8)
          << "function " << f << " of " << v;
  }
  const Buffer<float> special(std::vector<float>{-INFINITY, -127.0f, -126.0f, 0.0f, INFINITY, NAN});
  float_functions(special.data(), out.data(), 6);
  const auto exp2 = [&](int i) { return out[i * kNumFloatFunctions]; };
  EXPECT_EQ(exp2(0), 0.0f);
  EXPECT_EQ(exp2(1), 0.0f) << "too small for a normal float";
  EXPECT_EQ(exp2(2), 0x1p-126f);
  EXPECT_EQ(exp2(3), 1.0f);
  EXPECT_EQ(exp2(4), INFINITY);
  EXPECT_TRUE(std::isnan(exp2(5)));
}

TEST_P(Conformance, BitFunctions) {
  const std::vector<unsigned> values = {0, 1, 2, 0x80000000u, 0xffffffffu, 0x12345678u, 77, 78, 0x00ff0000u};
  const int n = static_cast<int>(values.size());
  const Buffer<unsigned> x(values);
  const Buffer<unsigned> out(values.size() * kNumBitFunctions);
  bit_functions(x.data(), out.data(), n);
  for (int i = 0; i < n; ++i) {
    const unsigned v = values[i];
    unsigned reversed = 0;
    for (int bit = 0; bit < 32; ++bit) reversed = reversed * 2 + (v >> bit & 1);
    const unsigned first = v == 0 ? 0 : static_cast<unsigned>(std::countr_zero(v)) + 1;
    const auto product = static_cast<unsigned>(std::uint64_t{v} * 0x9e3779b9u >> 32);
    const unsigned expected[kNumBitFunctions] = {static_cast<unsigned>(std::popcount(v)),
                                                 first,
                                                 static_cast<unsigned>(std::countl_zero(v)),
                                                 reversed,
                                                 product,
                                                 v | 0x3f800000u,
                                                 std::max(v, 77u),
                                                 std::min(v, 77u)};
    for (int f = 0; f < kNumBitFunctions; ++f) EXPECT_EQ(out[i * kNumBitFunctions + f], expected[f]) << f << " of " << v;
  }
}

}  // namespace
}  // namespace quire::cuda
