// Layout of the blocks (d, m: scale and minimum, halves; q: quants; fields packed in this order):
//   Q4_0  d, q[16]: element j in the low nibble of q[j], j + 16 in its high nibble; y = d (q - 8)
//   Q4_1  d, m, q[16]: the same order; y = d q + m
//   Q5_0  d, h[4], q[16]: the fifth bit of element j is bit j of h; y = d (q - 16)
//   Q5_1  d, m, h[4], q[16]; y = d q + m
//   Q8_0  d, q[32] signed; y = d q
//   Q4_K  d, m, s[12], q[128]: eight sub-blocks of 32 with six-bit scales and minima in s; y = d s q - m s'
//   Q5_K  d, m, s[12], h[32], q[128]: as Q4_K, bit i of h[l] the fifth bit of element l of sub-block i
//   Q6_K  l[128], h[64], s[16] signed, d: sixteen sub-blocks of 16; y = d s (q - 32)
#include "model/dequantize.h"

#include <bit>
#include <cstring>

#include "core/check.h"
#include "core/float16.h"

namespace quire {
namespace {

using Byte = std::uint8_t;

template <typename T>
T load(const Byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

float load_half(const Byte* p) { return half_to_float(load<std::uint16_t>(p)); }

void block_q4_0(const Byte* b, float* y) {
  const float d = load_half(b);
  for (int j = 0; j < 16; ++j) {
    y[j] = d * static_cast<float>((b[2 + j] & 15) - 8);
    y[j + 16] = d * static_cast<float>((b[2 + j] >> 4) - 8);
  }
}

void block_q4_1(const Byte* b, float* y) {
  const float d = load_half(b), m = load_half(b + 2);
  for (int j = 0; j < 16; ++j) {
    y[j] = d * static_cast<float>(b[4 + j] & 15) + m;
    y[j + 16] = d * static_cast<float>(b[4 + j] >> 4) + m;
  }
}

// The 5-bit value of element j of 32: nibbles at q, fifth bits at h.
int five_bits(const Byte* h, const Byte* q, int j) {
  const int nibble = j < 16 ? q[j] & 15 : q[j - 16] >> 4;
  return nibble | ((h[j / 8] >> (j % 8)) & 1) << 4;
}

void block_q5_0(const Byte* b, float* y) {
  const float d = load_half(b);
  for (int j = 0; j < 32; ++j) y[j] = d * static_cast<float>(five_bits(b + 2, b + 6, j) - 16);
}

void block_q5_1(const Byte* b, float* y) {
  const float d = load_half(b), m = load_half(b + 2);
  for (int j = 0; j < 32; ++j) y[j] = d * static_cast<float>(five_bits(b + 4, b + 8, j)) + m;
}

void block_q8_0(const Byte* b, float* y) {
  const float d = load_half(b);
  for (int j = 0; j < 32; ++j) y[j] = d * static_cast<float>(static_cast<std::int8_t>(b[2 + j]));
}

// Six-bit scale and minimum of sub-block j of 8.
struct ScaleMin {
  int scale, min;
};
ScaleMin scale_min(const Byte* s, int j) {
  if (j < 4) return {s[j] & 63, s[j + 4] & 63};
  return {(s[j + 4] & 15) | (s[j - 4] >> 6) << 4, (s[j + 4] >> 4) | (s[j] >> 6) << 4};
}

// Q4_K, and Q5_K where `high` holds the fifth bits.
void block_k45(const Byte* b, const Byte* high, const Byte* q, float* y) {
  const float d = load_half(b), dmin = load_half(b + 2);
  for (int i = 0; i < 8; ++i) {
    const ScaleMin sm = scale_min(b + 4, i);
    const float scale = d * static_cast<float>(sm.scale);
    const float min = dmin * static_cast<float>(sm.min);
    for (int l = 0; l < 32; ++l) {
      const int packed = q[i / 2 * 32 + l];
      int value = i % 2 == 0 ? packed & 15 : packed >> 4;
      if (high != nullptr) value |= ((high[l] >> i) & 1) << 4;
      y[i * 32 + l] = scale * static_cast<float>(value) - min;
    }
  }
}

void block_q4_k(const Byte* b, float* y) { block_k45(b, nullptr, b + 16, y); }
void block_q5_k(const Byte* b, float* y) { block_k45(b, b + 16, b + 48, y); }

void block_q6_k(const Byte* b, float* y) {
  const float d = load_half(b + 208);
  for (int e = 0; e < 256; ++e) {
    const int half = e / 128, quarter = e % 128 / 32, l = e % 32;  // 32 elements share a position of the nibbles and pairs
    const int low = b[half * 64 + quarter % 2 * 32 + l] >> (quarter / 2 * 4) & 15;
    const int high = b[128 + half * 32 + l] >> (quarter * 2) & 3;
    const auto scale = static_cast<float>(static_cast<std::int8_t>(b[192 + e / 16]));
    y[e] = d * scale * static_cast<float>((low | high << 4) - 32);
  }
}

template <typename Block>
void each_block(DType type, const Byte* src, float* dst, std::int64_t n, Block block) {
  for (std::int64_t i = 0; i < n; i += block_elements(type), src += block_bytes(type)) block(src, dst + i);
}

}  // namespace

void dequantize_row(DType type, const void* src, float* dst, std::int64_t n) {
  QUIRE_CHECK_MSG(n >= 0 && n % block_elements(type) == 0, "{} elements of {}", n, to_string(type));
  const auto* bytes = static_cast<const Byte*>(src);
  switch (type) {
    case DType::kF32:
      if (n > 0) std::memcpy(dst, src, static_cast<std::size_t>(n) * sizeof(float));
      return;
    case DType::kF16:
      return each_block(type, bytes, dst, n, [](const Byte* b, float* y) { *y = load_half(b); });
    case DType::kBF16:
      return each_block(type, bytes, dst, n, [](const Byte* b, float* y) { *y = bfloat16_to_float(load<std::uint16_t>(b)); });
    case DType::kQ4_0:
      return each_block(type, bytes, dst, n, block_q4_0);
    case DType::kQ4_1:
      return each_block(type, bytes, dst, n, block_q4_1);
    case DType::kQ5_0:
      return each_block(type, bytes, dst, n, block_q5_0);
    case DType::kQ5_1:
      return each_block(type, bytes, dst, n, block_q5_1);
    case DType::kQ8_0:
      return each_block(type, bytes, dst, n, block_q8_0);
    case DType::kQ4_K:
      return each_block(type, bytes, dst, n, block_q4_k);
    case DType::kQ5_K:
      return each_block(type, bytes, dst, n, block_q5_k);
    case DType::kQ6_K:
      return each_block(type, bytes, dst, n, block_q6_k);
    case DType::kI32:
    case DType::kI64:
    case DType::kU8:
      break;
  }
  fail_check("a weight type", to_string(type));
}

}  // namespace quire
