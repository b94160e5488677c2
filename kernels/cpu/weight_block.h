// WeightBlock: 32 consecutive weights of a row in a quantised format, as integers with float scales: the one definition of every
// block format in the kernels. What embed and the portable matmul compute with; faster variants unpack several rows at once and
// must come to the same integers and the same scales.
// Layouts: docs/numerics.md, "Block formats". Blocks are only 2-byte aligned, so they are read byte by byte or through memcpy.
#pragma once

#include "core/dtype.h"
#include "kernels/cpu/activation_block.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/simd.h"

namespace quire::cpu::QUIRE_ISA {

// Weight i is d * q[i] + m (the 6-bit format: d * half_scale[i / 16] * q[i]).
struct WeightBlock {
  std::int8_t q[kBlock];
  float d = 0.0f;
  float m = 0.0f;              // formats with a minimum
  int half_scale[2] = {1, 1};  // the 6-bit format
};

// Bytes of a file's block, and blocks of 32 weights in it.
template <DType kType>
inline constexpr int kFileBlockBytes = block_bytes(kType);
template <DType kType>
inline constexpr int kBlocksPerFileBlock = block_elements(kType) / kBlock;

inline float read_f16(const std::uint8_t* p) {
  std::uint16_t h;
  __builtin_memcpy(&h, p, sizeof h);
  return f16_to_f32(h);
}

// Q4_0, Q4_1: d, [m], 16 bytes. Q5_0, Q5_1: d, [m], a fifth bit for each weight, 16 bytes. Low nibbles are weights 0-15.
template <DType kType>
inline void unpack_legacy(const std::uint8_t* block, WeightBlock& out) {
  constexpr bool kFiveBits = kType == DType::kQ5_0 || kType == DType::kQ5_1;
  constexpr int kOffset = has_minimum(kType) ? 0 : kFiveBits ? 16 : 8;
  out.d = read_f16(block);
  block += 2;
  if constexpr (has_minimum(kType)) {
    out.m = read_f16(block);
    block += 2;
  }
  const std::uint8_t* high = block;
  if constexpr (kFiveBits) block += 4;
  for (int i = 0; i < kBlock; ++i) {
    int q = i < 16 ? block[i] & 15 : block[i - 16] >> 4;
    if constexpr (kFiveBits) q |= ((high[i / 8] >> (i % 8)) & 1) << 4;
    out.q[i] = static_cast<std::int8_t>(q - kOffset);
  }
}

inline void unpack_q8_0(const std::uint8_t* block, WeightBlock& out) {
  out.d = read_f16(block);
  __builtin_memcpy(out.q, block + 2, kBlock);
}

// The scale and the minimum of block j in the 12 bytes s, six bits each.
inline void set_k_scales(const std::uint8_t* s, int j, float d, float dmin, WeightBlock& out) {
  const int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | ((s[j - 4] >> 6) << 4);
  const int minimum = j < 4 ? s[j + 4] & 63 : (s[j + 4] >> 4) | ((s[j] >> 6) << 4);
  out.d = d * static_cast<float>(scale);
  out.m = -(dmin * static_cast<float>(minimum));
}

// Q4_K, Q5_K: d, dmin, 12 bytes with a 6-bit scale and a 6-bit minimum for each of eight blocks, [32 bytes of fifth bits],
// 128 bytes of which each 32 hold a block in the low nibbles and the next one in the high nibbles.
template <DType kType>
inline void unpack_k(const std::uint8_t* super, int j, WeightBlock& out) {
  set_k_scales(super + 4, j, read_f16(super), read_f16(super + 2), out);
  const std::uint8_t* high = super + 16;
  const std::uint8_t* nibbles = (kType == DType::kQ5_K ? high + 32 : high) + 32 * (j / 2);
  for (int i = 0; i < kBlock; ++i) {
    int q = (nibbles[i] >> (4 * (j % 2))) & 15;
    if constexpr (kType == DType::kQ5_K) q |= ((high[i] >> j) & 1) << 4;
    out.q[i] = static_cast<std::int8_t>(q);
  }
}

// Q6_K: 128 bytes of low nibbles, 64 bytes of two high bits, 16 signed scales, d. Blocks 0-3 lie in the first half of each.
inline void unpack_q6_k(const std::uint8_t* super, int j, WeightBlock& out) {
  const int half = j / 4;
  const int quarter = j % 4;
  const std::uint8_t* low = super + 64 * half + 32 * (quarter % 2);
  const std::uint8_t* high = super + 128 + 32 * half;
  for (int i = 0; i < kBlock; ++i) {
    const int nibble = (low[i] >> (4 * (quarter / 2))) & 15;
    out.q[i] = static_cast<std::int8_t>((nibble | (((high[i] >> (2 * quarter)) & 3) << 4)) - 32);
  }
  for (int i = 0; i < 2; ++i) out.half_scale[i] = int{static_cast<std::int8_t>(super[192 + 2 * j + i])};
  out.d = read_f16(super + 208);
}

// Block b (of 32 weights) of a row.
template <DType kType>
inline void unpack_block(const std::uint8_t* row, std::int64_t b, WeightBlock& out) {
  const std::uint8_t* block = row + b / kBlocksPerFileBlock<kType> * kFileBlockBytes<kType>;
  const int j = static_cast<int>(b % kBlocksPerFileBlock<kType>);
  if constexpr (kType == DType::kQ8_0) {
    unpack_q8_0(block, out);
  } else if constexpr (kType == DType::kQ6_K) {
    unpack_q6_k(block, j, out);
  } else if constexpr (has_super_blocks(kType)) {
    unpack_k<kType>(block, j, out);
  } else {
    unpack_legacy<kType>(block, out);
  }
}

}  // namespace quire::cpu::QUIRE_ISA
