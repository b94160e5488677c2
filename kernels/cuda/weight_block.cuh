// The blocks of GGUF's quantised types, read one weight at a time: docs/numerics.md, section 2. Every type is seen as sub-blocks
// of 32 weights (Q6_K: 16) w[i] = d * q[i] + m with integers q. For conversions at load; products read them repacked.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "kernels/cuda/intrinsics.cuh"

namespace quire::cuda {

// Of a half at a 2-byte aligned address.
QUIRE_DEVICE float load_half(const std::uint8_t* p) {
  return unpack2<Half>(load_global(reinterpret_cast<const std::uint16_t*>(p))).x;
}

// Six-bit scale and minimum of sub-block j of Q4_K and Q5_K; `s`: the twelve bytes of them.
struct ScaleMin {
  int scale, min;
};
QUIRE_DEVICE ScaleMin scale_min(const std::uint8_t* s, int j) {
  if (j < 4) return {s[j] & 63, s[j + 4] & 63};
  return {(s[j + 4] & 15) | (s[j - 4] >> 6) << 4, (s[j + 4] >> 4) | (s[j] >> 6) << 4};
}

QUIRE_DEVICE int nibble(const std::uint8_t* n, int i) { return i < 16 ? n[i] & 15 : n[i - 16] >> 4; }
QUIRE_DEVICE int bit(const std::uint8_t* h, int i) { return h[i / 8] >> (i % 8) & 1; }

// The integer of weight i of the block.
QUIRE_DEVICE int block_quant(DType type, const std::uint8_t* block, int i) {
  switch (type) {
    case DType::kQ4_0:
      return nibble(block + 2, i) - 8;
    case DType::kQ4_1:
      return nibble(block + 4, i);
    case DType::kQ5_0:
      return (nibble(block + 6, i) | bit(block + 2, i) << 4) - 16;
    case DType::kQ5_1:
      return nibble(block + 8, i) | bit(block + 4, i) << 4;
    case DType::kQ8_0:
      return static_cast<std::int8_t>(block[2 + i]);
    case DType::kQ4_K:
    case DType::kQ5_K: {
      const int j = i / 32, l = i % 32;
      const int packed = block[(type == DType::kQ4_K ? 16 : 48) + j / 2 * 32 + l];
      const int low = j % 2 == 0 ? packed & 15 : packed >> 4;
      return type == DType::kQ4_K ? low : low | (block[16 + l] >> j & 1) << 4;
    }
    default: {  // Q6_K
      const int half = i / 128, quarter = i % 128 / 32, l = i % 32;
      const int low = block[half * 64 + quarter % 2 * 32 + l] >> (quarter / 2 * 4) & 15;
      return (low | (block[128 + half * 32 + l] >> (quarter * 2) & 3) << 4) - 32;
    }
  }
}

// What a kernel is told of a type: device code cannot ask core/dtype.h.
struct BlockFormat {
  DType type;
  int elements, bytes;  // of a block
};
inline BlockFormat block_format(DType type) { return {type, block_elements(type), block_bytes(type)}; }

QUIRE_DEVICE bool has_minimum(DType type) {
  return type == DType::kQ4_1 || type == DType::kQ5_1 || type == DType::kQ4_K || type == DType::kQ5_K;
}

struct BlockScale {
  float d, m;  // m = 0 without a minimum
};

// Of weight i of the block, and of its neighbours in the same sub-block.
QUIRE_DEVICE BlockScale block_scale(DType type, const std::uint8_t* block, int i) {
  switch (type) {
    case DType::kQ4_1:
    case DType::kQ5_1:
      return {load_half(block), load_half(block + 2)};
    case DType::kQ4_K:
    case DType::kQ5_K: {
      const ScaleMin s = scale_min(block + 4, i / 32);
      return {__fmul_rn(load_half(block), static_cast<float>(s.scale)),
              -__fmul_rn(load_half(block + 2), static_cast<float>(s.min))};
    }
    case DType::kQ6_K: {
      const auto scale = static_cast<std::int8_t>(block[192 + i / 16]);
      return {__fmul_rn(load_half(block + 208), static_cast<float>(scale)), 0.0f};
    }
    default:
      return {load_half(block), 0.0f};
  }
}

}  // namespace quire::cuda
