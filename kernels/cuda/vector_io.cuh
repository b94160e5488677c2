// Rows of a matrix as kernels see them: read and written as floats, by chunks of eight elements. A chunk is one access of 16
// bytes (two for F32) where the row's address allows it, single elements otherwise and at the end of a row whose width is no
// multiple of eight; nothing beyond the row is touched. Which of the two is the matter of the view; what a kernel computes is the
// same.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/tensor.h"
#include "kernels/cuda/intrinsics.cuh"

namespace quire::cuda {

inline constexpr int kChunk = 8;  // elements

template <typename T>
QUIRE_DEVICE float widen(T x) {
  return unpack2<T>(x.bits).x;
}
template <>
QUIRE_DEVICE float widen<float>(float x) {
  return x;
}

// To nearest even.
template <typename T>
QUIRE_DEVICE T narrow(float x) {
  return {static_cast<std::uint16_t>(pack2<T>(x, 0.0f))};
}
template <>
QUIRE_DEVICE float narrow<float>(float x) {
  return x;
}

// One row. T may be const.
template <typename T>
struct Row {
  using Element = std::remove_const_t<T>;

  T* data;
  int size;         // elements
  bool is_aligned;  // to 16 bytes

  QUIRE_DEVICE bool is_whole(int chunk) const { return is_aligned && (chunk + 1) * kChunk <= size; }

  // The bits of a chunk of two-byte elements, the first in the low half of the first word; zeros beyond the row.
  QUIRE_DEVICE void load_words(int chunk, std::uint32_t (&words)[kChunk / 2]) const {
    const Element* begin = data + static_cast<std::int64_t>(chunk) * kChunk;
    if (is_whole(chunk)) {
      const uint4 packed = load_global(reinterpret_cast<const uint4*>(begin));
      words[0] = packed.x, words[1] = packed.y, words[2] = packed.z, words[3] = packed.w;
      return;
    }
    QUIRE_UNROLL
    for (int i = 0; i < kChunk / 2; ++i) {
      const int at = chunk * kChunk + 2 * i;
      const std::uint32_t low = at < size ? load_global(begin + 2 * i).bits : 0u;
      const std::uint32_t high = at + 1 < size ? load_global(begin + 2 * i + 1).bits : 0u;
      words[i] = low | high << 16;
    }
  }

  // Elements beyond the row read as zero.
  QUIRE_DEVICE void load(int chunk, float (&x)[kChunk]) const {
    [[maybe_unused]] const Element* begin = data + static_cast<std::int64_t>(chunk) * kChunk;
    if constexpr (!std::is_same_v<Element, float>) {
      std::uint32_t words[kChunk / 2];
      load_words(chunk, words);
      QUIRE_UNROLL
      for (int i = 0; i < kChunk / 2; ++i) {
        const float2 pair = unpack2<Element>(words[i]);
        x[2 * i] = pair.x;
        x[2 * i + 1] = pair.y;
      }
    } else if (is_whole(chunk)) {
      const float4 low = load_global(reinterpret_cast<const float4*>(begin));
      const float4 high = load_global(reinterpret_cast<const float4*>(begin) + 1);
      x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
      x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
    } else {
      QUIRE_UNROLL
      for (int i = 0; i < kChunk; ++i) x[i] = chunk * kChunk + i < size ? load_global(begin + i) : 0.0f;
    }
  }

  QUIRE_DEVICE void store(int chunk, const float (&x)[kChunk]) const {
    Element* begin = data + static_cast<std::int64_t>(chunk) * kChunk;
    if (!is_whole(chunk)) {
      QUIRE_UNROLL
      for (int i = 0; i < kChunk; ++i) {
        if (chunk * kChunk + i < size) store_global(begin + i, narrow<Element>(x[i]));
      }
    } else if constexpr (std::is_same_v<Element, float>) {
      store_global(reinterpret_cast<float4*>(begin), make_float4(x[0], x[1], x[2], x[3]));
      store_global(reinterpret_cast<float4*>(begin) + 1, make_float4(x[4], x[5], x[6], x[7]));
    } else {
      store_global(reinterpret_cast<uint4*>(begin), make_uint4(pack2<Element>(x[0], x[1]), pack2<Element>(x[2], x[3]),
                                                               pack2<Element>(x[4], x[5]), pack2<Element>(x[6], x[7])));
    }
  }

  // Elements [begin, begin + count) as a row.
  QUIRE_DEVICE Row part(int begin, int count) const {
    constexpr int kPerVector = static_cast<int>(16 / sizeof(T));
    return {data + begin, count, is_aligned && begin % kPerVector == 0};
  }
};

// What remains of floats that go through memory of type T.
template <typename T>
QUIRE_DEVICE void round_to(float (&x)[kChunk]) {
  QUIRE_UNROLL
  for (int i = 0; i < kChunk; i += 2) {
    const float2 pair = unpack2<T>(pack2<T>(x[i], x[i + 1]));
    x[i] = pair.x;
    x[i + 1] = pair.y;
  }
}

// A matrix [.., size] by rows, as an argument of a kernel. The row is the innermost dimension's for two dimensions, and all
// dimensions but the outermost for more ([T, heads, D]: heads * D elements).
template <typename T>
struct Rows {
  T* data;
  std::int64_t stride;  // elements from one row to the next
  int size;             // elements of a row
  bool is_aligned;      // every row, to 16 bytes

  QUIRE_DEVICE Row<T> operator[](std::int64_t i) const { return {data + i * stride, size, is_aligned}; }
};

template <typename T>
Rows<T> rows_of(const TensorView& view) {
  std::int64_t size = 1;
  for (int i = 1; i < view.rank; ++i) size *= view.dim(i);
  const bool is_aligned =
      reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 && view.outer_stride * static_cast<std::int64_t>(sizeof(T)) % 16 == 0;
  return {static_cast<T*>(view.data), view.outer_stride, static_cast<int>(size), is_aligned};
}

QUIRE_DEVICE int num_chunks(int elements) { return (elements + kChunk - 1) / kChunk; }

// The work of this thread under row_pieces_shape(rows, pieces): piece `piece` of row `row`. `piece` may lie beyond the last.
struct RowPiece {
  std::int64_t row;
  int piece;
};
QUIRE_DEVICE RowPiece piece_of_row(int pieces) {
  const unsigned blocks_per_row = (static_cast<unsigned>(pieces) + blockDim.x - 1) / blockDim.x;
  return {blockIdx.x / blocks_per_row, static_cast<int>(blockIdx.x % blocks_per_row * blockDim.x + threadIdx.x)};
}

}  // namespace quire::cuda
