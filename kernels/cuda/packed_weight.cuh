// Quantised matrices in the order in which tensor cores take them. A packed matrix has the bytes of the file's in another order,
// none more: a TensorView of the same type and shape describes it, and rows() of it is a matrix too if it begins at a multiple of
// 16. Sixteen rows of K weights are cut into tiles [16, 64]; all tiles' integers come first, then their scales.
//
// Integers: a lane's share of a tile, in the layout of `a` in intrinsics.cuh, is 16 bytes (8-bit types: twice 16, 512 bytes
// apart), so that a warp reads whole lines. With g = lane / 4, t = lane % 4, product i of 4 takes the lane's k from 32 (i / 2) +
// 8 t + 4 (i % 2) on: k and k + 1 for columns 2t, 2t + 1 of the fragment, k + 2 and k + 3 for columns 2t + 8, 2t + 9. Activations
// are taken in the same order: 8 neighbours of a block of 32 are one load of 16 bytes.
//
//   4 bits  word i: bits 4 j and 16 + 4 j begin the two integers of a[j]
//   8 bits  vector i / 2, bytes 8 (i % 2) + 2 j and the next: the two integers of a[j]
//
// Scales, for g = 0 to 7, of rows g and g + 8 and blocks b = 0, 1 of a tile:
//
//   Q4_0, Q8_0  64 bytes a tile   [g][b][row] d
//   Q4_1        128 bytes a tile  [g][b][row] d, m
//   Q4_K        256 bytes for four tiles   [g][row] d, dmin; [tile][g] 32 bits; [tile][g] 16 bits: of 48 bits, the lower half
//               row g's, six each: scale and minimum of b = 0, then of b = 1
#pragma once

#include <cstdint>

#include "kernels/cuda/vector_io.cuh"
#include "kernels/cuda/weight_block.cuh"

namespace quire::cuda {

inline constexpr int kTileRows = 16;
inline constexpr int kTileWidth = 64;  // weights of a row
inline constexpr int kTileBlocks = 2;  // of 32 weights with one scale

template <DType kType>
struct PackedFormat {
  static constexpr bool kIs8Bit = kType == DType::kQ8_0;
  static constexpr bool kHasMinimum = kType == DType::kQ4_1 || kType == DType::kQ4_K;
  static constexpr int kVectors = kIs8Bit ? 2 : 1;  // of 16 bytes, of one lane and tile
  static constexpr int kQuantBytes = kVectors * 512;
  static constexpr int kTilesPerScale = kType == DType::kQ4_K ? 4 : 1;  // one group of scales
  static constexpr int kScaleBytes = kType == DType::kQ4_K ? 256 : kType == DType::kQ4_1 ? 128 : 64;
};

// Sixteen packed rows.
template <DType kType>
struct PackedRows {
  using Format = PackedFormat<kType>;
  std::uint8_t* data;
  int num_tiles;

  QUIRE_DEVICE std::uint8_t* quants(int tile) const { return data + static_cast<std::int64_t>(tile) * Format::kQuantBytes; }
  QUIRE_DEVICE std::uint8_t* scales(int tile) const {
    return data + static_cast<std::int64_t>(num_tiles) * Format::kQuantBytes +
           static_cast<std::int64_t>(tile / Format::kTilesPerScale) * Format::kScaleBytes;
  }
};

// ---- scales, as loaded and as used

struct TileScale {
  float d[kTileBlocks][2];  // [b][row]
  float m[kTileBlocks][2];
};

template <DType kType>
struct PackedScale;

template <>
struct PackedScale<DType::kQ4_0> {
  uint2 halves;
  QUIRE_DEVICE static PackedScale load(const std::uint8_t* scales, int, int g) {
    return {load_global(reinterpret_cast<const uint2*>(scales) + g)};
  }
  QUIRE_DEVICE TileScale unpack() const {
    const float2 first = unpack2<Half>(halves.x), second = unpack2<Half>(halves.y);
    return {{{first.x, first.y}, {second.x, second.y}}, {}};
  }
};

template <>
struct PackedScale<DType::kQ8_0> : PackedScale<DType::kQ4_0> {
  QUIRE_DEVICE static PackedScale load(const std::uint8_t* scales, int tile, int g) {
    return {PackedScale<DType::kQ4_0>::load(scales, tile, g)};
  }
};

template <>
struct PackedScale<DType::kQ4_1> {
  uint4 pairs;
  QUIRE_DEVICE static PackedScale load(const std::uint8_t* scales, int, int g) {
    return {load_global(reinterpret_cast<const uint4*>(scales) + g)};
  }
  QUIRE_DEVICE TileScale unpack() const {
    const float2 p00 = unpack2<Half>(pairs.x), p01 = unpack2<Half>(pairs.y);
    const float2 p10 = unpack2<Half>(pairs.z), p11 = unpack2<Half>(pairs.w);
    return {{{p00.x, p01.x}, {p10.x, p11.x}}, {{p00.y, p01.y}, {p10.y, p11.y}}};
  }
};

template <>
struct PackedScale<DType::kQ4_K> {
  uint2 pairs;  // (d, dmin) of both rows
  std::uint32_t low;
  std::uint16_t high;
  QUIRE_DEVICE static PackedScale load(const std::uint8_t* scales, int tile, int g) {
    const int place = tile % 4 * 8 + g;
    return {load_global(reinterpret_cast<const uint2*>(scales) + g),
            load_global(reinterpret_cast<const std::uint32_t*>(scales + 64) + place),
            load_global(reinterpret_cast<const std::uint16_t*>(scales + 192) + place)};
  }
  QUIRE_DEVICE TileScale unpack() const {
    const std::uint32_t six_bits[] = {low & 0xffffffu, low >> 24 | static_cast<std::uint32_t>(high) << 8};
    const float2 of_rows[] = {unpack2<Half>(pairs.x), unpack2<Half>(pairs.y)};
    TileScale scale;
    QUIRE_UNROLL
    for (int b = 0; b < kTileBlocks; ++b) {
      QUIRE_UNROLL
      for (int row = 0; row < 2; ++row) {
        scale.d[b][row] = __fmul_rn(of_rows[row].x, static_cast<float>(six_bits[row] >> (12 * b) & 63u));
        scale.m[b][row] = -__fmul_rn(of_rows[row].y, static_cast<float>(six_bits[row] >> (12 * b + 6) & 63u));
      }
    }
    return scale;
  }
};

// ---- integers as operands of mma_m16n8k16

// 16 + q of the eight 4-bit integers q of a word, exactly: q stands in the upper bits of the mantissa of 16.
template <typename T>
QUIRE_DEVICE void unpack_nibbles(std::uint32_t word, std::uint32_t (&a)[4]);
template <>
QUIRE_DEVICE void unpack_nibbles<BFloat16>(std::uint32_t word, std::uint32_t (&a)[4]) {
  a[0] = (word << 3 & 0x00780078u) | 0x41804180u;
  a[1] = (word >> 1 & 0x00780078u) | 0x41804180u;
  a[2] = (word >> 5 & 0x00780078u) | 0x41804180u;
  a[3] = (word >> 9 & 0x00780078u) | 0x41804180u;
}
template <>
QUIRE_DEVICE void unpack_nibbles<Half>(std::uint32_t word, std::uint32_t (&a)[4]) {
  a[0] = (word << 6 & 0x03c003c0u) | 0x4c004c00u;
  a[1] = (word << 2 & 0x03c003c0u) | 0x4c004c00u;
  a[2] = (word >> 2 & 0x03c003c0u) | 0x4c004c00u;
  a[3] = (word >> 6 & 0x03c003c0u) | 0x4c004c00u;
}

// Two signed bytes, exactly.
template <typename T>
QUIRE_DEVICE std::uint32_t unpack_bytes(std::uint32_t two) {
  return pack2<T>(static_cast<float>(static_cast<std::int8_t>(two)), static_cast<float>(static_cast<std::int8_t>(two >> 8)));
}

// ---- host

// Calls f.operator()<kType>(). REQUIRES: is_packable().
template <typename Function>
void dispatch_packed(DType type, Function&& f) {
  switch (type) {
    case DType::kQ4_0:
      return f.template operator()<DType::kQ4_0>();
    case DType::kQ4_1:
      return f.template operator()<DType::kQ4_1>();
    case DType::kQ4_K:
      return f.template operator()<DType::kQ4_K>();
    default:
      return f.template operator()<DType::kQ8_0>();
  }
}

}  // namespace quire::cuda
