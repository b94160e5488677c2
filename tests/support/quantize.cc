#include "tests/support/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/check.h"
#include "core/float16.h"
#include "model/dequantize.h"

namespace quire::test {
namespace {

using Byte = std::uint8_t;

// Stores a half and returns what was kept, so that quants are rounded against it.
float put_half(Byte* p, float value) {
  const std::uint16_t half = float_to_half(value);
  std::memcpy(p, &half, sizeof(half));
  return half_to_float(half);
}

int nearest(float value, int low, int high) { return std::clamp(static_cast<int>(std::lround(value)), low, high); }
float ratio(float value, float scale) { return scale == 0.0f ? 0.0f : value / scale; }

float largest(const float* x, int n) {
  float best = 0.0f;
  for (int i = 0; i < n; ++i) best = std::max(best, std::abs(x[i]));
  return best;
}

void put_nibble(Byte* q, int j, int value) { q[j % 16] = static_cast<Byte>(q[j % 16] | value << (j < 16 ? 0 : 4)); }
void put_fifth_bit(Byte* h, int j, int value) { h[j / 8] = static_cast<Byte>(h[j / 8] | value << (j % 8)); }

// Q4_0, Q5_0: y = d (q - middle).
void legacy_symmetric(const float* x, Byte* b, int middle) {
  const float d = put_half(b, largest(x, 32) / static_cast<float>(middle - 1));
  const bool five = middle == 16;
  for (int j = 0; j < 32; ++j) {
    const int q = nearest(ratio(x[j], d), -middle, middle - 1) + middle;
    put_nibble(b + (five ? 6 : 2), j, q & 15);
    if (five) put_fifth_bit(b + 2, j, q >> 4);
  }
}

// Q4_1, Q5_1: y = d q + m.
void legacy_with_min(const float* x, Byte* b, int top) {
  const auto [low, high] = std::minmax_element(x, x + 32);
  const float d = put_half(b, (*high - *low) / static_cast<float>(top));
  const float m = put_half(b + 2, *low);
  const bool five = top == 31;
  for (int j = 0; j < 32; ++j) {
    const int q = nearest(ratio(x[j] - m, d), 0, top);
    put_nibble(b + (five ? 8 : 4), j, q & 15);
    if (five) put_fifth_bit(b + 4, j, q >> 4);
  }
}

void q8_0(const float* x, Byte* b) {
  const float d = put_half(b, largest(x, 32) / 127.0f);
  for (int j = 0; j < 32; ++j) b[2 + j] = static_cast<Byte>(static_cast<std::int8_t>(nearest(ratio(x[j], d), -127, 127)));
}

// Q4_K, Q5_K: y = d s q - m s', eight sub-blocks of 32.
void k_with_min(const float* x, Byte* b, int top) {
  float scales[8], mins[8];
  for (int i = 0; i < 8; ++i) {
    const auto [low, high] = std::minmax_element(x + 32 * i, x + 32 * i + 32);
    mins[i] = std::max(0.0f, -*low);
    scales[i] = std::max(0.0f, *high + mins[i]) / static_cast<float>(top);
  }
  const float d = put_half(b, largest(scales, 8) / 63.0f);
  const float dmin = put_half(b + 2, largest(mins, 8) / 63.0f);
  Byte* const s = b + 4;
  Byte* const high = b + 16;
  Byte* const q = b + (top == 31 ? 48 : 16);
  for (int i = 0; i < 8; ++i) {
    const int scale = nearest(ratio(scales[i], d), 0, 63), min = nearest(ratio(mins[i], dmin), 0, 63);
    if (i < 4) {
      s[i] = static_cast<Byte>(s[i] | scale);
      s[i + 4] = static_cast<Byte>(s[i + 4] | min);
    } else {
      s[i + 4] = static_cast<Byte>((scale & 15) | (min & 15) << 4);
      s[i - 4] = static_cast<Byte>(s[i - 4] | (scale >> 4) << 6);
      s[i] = static_cast<Byte>(s[i] | (min >> 4) << 6);
    }
    for (int l = 0; l < 32; ++l) {
      const float shifted = x[32 * i + l] + dmin * static_cast<float>(min);
      const int value = nearest(ratio(shifted, d * static_cast<float>(scale)), 0, top);
      Byte& packed = q[i / 2 * 32 + l];
      packed = static_cast<Byte>(packed | (value & 15) << (i % 2 * 4));
      if (top == 31) high[l] = static_cast<Byte>(high[l] | (value >> 4) << i);
    }
  }
}

void q6_k(const float* x, Byte* b) {
  float scales[16];
  for (int i = 0; i < 16; ++i) scales[i] = largest(x + 16 * i, 16) / 31.0f;
  const float d = put_half(b + 208, largest(scales, 16) / 127.0f);
  for (int e = 0; e < 256; ++e) {
    const int scale = nearest(ratio(scales[e / 16], d), 0, 127);
    b[192 + e / 16] = static_cast<Byte>(scale);
    const int value = nearest(ratio(x[e], d * static_cast<float>(scale)), -32, 31) + 32;
    const int half = e / 128, quarter = e % 128 / 32, l = e % 32;
    Byte& low = b[half * 64 + quarter % 2 * 32 + l];
    Byte& high = b[128 + half * 32 + l];
    low = static_cast<Byte>(low | (value & 15) << (quarter / 2 * 4));
    high = static_cast<Byte>(high | (value >> 4) << (quarter * 2));
  }
}

void quantize_block(DType type, const float* x, Byte* b) {
  switch (type) {
    case DType::kF32:
      std::memcpy(b, x, sizeof(float));
      return;
    case DType::kF16:
      put_half(b, *x);
      return;
    case DType::kBF16: {
      const std::uint16_t value = float_to_bfloat16(*x);
      std::memcpy(b, &value, sizeof(value));
      return;
    }
    case DType::kQ4_0:
      return legacy_symmetric(x, b, 8);
    case DType::kQ4_1:
      return legacy_with_min(x, b, 15);
    case DType::kQ5_0:
      return legacy_symmetric(x, b, 16);
    case DType::kQ5_1:
      return legacy_with_min(x, b, 31);
    case DType::kQ8_0:
      return q8_0(x, b);
    case DType::kQ4_K:
      return k_with_min(x, b, 15);
    case DType::kQ5_K:
      return k_with_min(x, b, 31);
    case DType::kQ6_K:
      return q6_k(x, b);
    default:
      fail_check("a weight type", to_string(type));
  }
}

}  // namespace

std::vector<std::byte> quantize(DType type, std::span<const float> values) {
  const auto elements = static_cast<std::size_t>(block_elements(type));
  const auto bytes = static_cast<std::size_t>(block_bytes(type));
  QUIRE_CHECK_MSG(values.size() % elements == 0, "{} values as {}", values.size(), to_string(type));
  std::vector<std::byte> blocks(values.size() / elements * bytes);
  for (std::size_t i = 0; i < values.size() / elements; ++i) {
    quantize_block(type, values.data() + i * elements, reinterpret_cast<Byte*>(blocks.data()) + i * bytes);
  }
  return blocks;
}

std::vector<float> dequantize(DType type, std::span<const std::byte> blocks) {
  const std::size_t num_blocks = blocks.size() / static_cast<std::size_t>(block_bytes(type));
  std::vector<float> values(num_blocks * static_cast<std::size_t>(block_elements(type)));
  dequantize_row(type, blocks.data(), values.data(), static_cast<std::int64_t>(values.size()));
  return values;
}

}  // namespace quire::test
