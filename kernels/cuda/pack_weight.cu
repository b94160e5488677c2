// Quantised matrices into the order of packed_weight.cuh, at load, and from there to BF16 or F16, for products of many rows: with
// the integers in memory once, a matrix is unpacked into scratch and multiplied there.
//
// No shared memory. Packing has up to 39 registers (nvcc 13.0): an SM of an H200 holds 6 blocks of 256 threads, three quarters of
// its threads; bound by its loads of single bytes, once. Unpacking has 32 registers, so all threads, each with 16 or 32 bytes of
// integers in flight: 32 KB per SM or more, where 27 KB hide the latency.
#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/float_dispatch.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/packed_weight.cuh"

namespace quire::cuda {
namespace {

// A lane of a tile and a thread: its integers, and of eight lanes the scales.
template <DType kType>
QUIRE_DEVICE void pack_quants(const std::uint8_t* const (&rows)[2], const PackedRows<kType>& to, int tile, int lane) {
  using Format = PackedFormat<kType>;
  constexpr int kBits = Format::kIs8Bit ? 8 : 4;
  constexpr int kZero = kType == DType::kQ4_0 ? 8 : 0;  // what block_quant() subtracts
  std::uint32_t words[4 * Format::kVectors] = {};
  for (int i = 0; i < 4; ++i) {
    for (int e = 0; e < 8; ++e) {  // element e % 2 of a[e / 2]
      const int j = e / 2, k = tile * kTileWidth + 32 * (i / 2) + 8 * (lane % 4) + 4 * (i % 2) + 2 * (j / 2) + e % 2;
      const int per_block = kType == DType::kQ4_K ? 256 : 32;
      const int bytes = kType == DType::kQ4_K ? 144 : kType == DType::kQ4_0 ? 18 : kType == DType::kQ4_1 ? 20 : 34;
      const std::uint8_t* block = rows[j % 2] + static_cast<std::int64_t>(k / per_block) * bytes;
      const auto q = static_cast<std::uint32_t>(block_quant(kType, block, k % per_block) + kZero) & ((1u << kBits) - 1);
      if constexpr (Format::kIs8Bit) {
        words[2 * i + j / 2] |= q << (16 * (j % 2) + 8 * (e % 2));
      } else {
        words[i] |= q << (4 * j + 16 * (e % 2));
      }
    }
  }
  for (int v = 0; v < Format::kVectors; ++v) {
    store_global(reinterpret_cast<uint4*>(to.quants(tile)) + kWarpSize * v + lane,
                 make_uint4(words[4 * v], words[4 * v + 1], words[4 * v + 2], words[4 * v + 3]));
  }
}

QUIRE_DEVICE std::uint16_t half_at(const std::uint8_t* p) { return load_global(reinterpret_cast<const std::uint16_t*>(p)); }

// Types with one scale, or scale and minimum, per block of 32.
template <DType kType>
QUIRE_DEVICE void pack_scales(const std::uint8_t* const (&rows)[2], const PackedRows<kType>& to, int tile, int g) {
  constexpr int kHalves = kType == DType::kQ4_1 ? 2 : 1;
  constexpr int kBytes = kType == DType::kQ4_0 ? 18 : kType == DType::kQ4_1 ? 20 : 34;
  auto* halves = reinterpret_cast<std::uint16_t*>(to.scales(tile)) + g * 4 * kHalves;
  for (int b = 0; b < kTileBlocks; ++b) {
    for (int row = 0; row < 2; ++row) {
      const std::uint8_t* block = rows[row] + static_cast<std::int64_t>(tile * kTileBlocks + b) * kBytes;
      for (int i = 0; i < kHalves; ++i) store_global(halves + (b * 2 + row) * kHalves + i, half_at(block + 2 * i));
    }
  }
}
template <>
QUIRE_DEVICE void pack_scales<DType::kQ4_K>(const std::uint8_t* const (&rows)[2], const PackedRows<DType::kQ4_K>& to, int tile,
                                            int g) {
  std::uint64_t bits = 0;
  auto* halves = reinterpret_cast<std::uint16_t*>(to.scales(tile)) + g * 4;
  for (int row = 0; row < 2; ++row) {
    const std::uint8_t* block = rows[row] + static_cast<std::int64_t>(tile / 4) * 144;
    for (int b = 0; b < kTileBlocks; ++b) {
      const ScaleMin s = scale_min(block + 4, tile % 4 * kTileBlocks + b);
      bits |= static_cast<std::uint64_t>(s.scale | s.min << 6) << (24 * row + 12 * b);
    }
    if (tile % 4 != 0) continue;
    store_global(halves + 2 * row, half_at(block));
    store_global(halves + 2 * row + 1, half_at(block + 2));
  }
  const int place = tile % 4 * 8 + g;
  store_global(reinterpret_cast<std::uint32_t*>(to.scales(tile) + 64) + place, static_cast<std::uint32_t>(bits));
  store_global(reinterpret_cast<std::uint16_t*>(to.scales(tile) + 192) + place, static_cast<std::uint16_t>(bits >> 32));
}

// A warp packs a tile.
template <DType kType>
__global__ void pack_weight_kernel(const std::uint8_t* from, std::int64_t row_bytes, std::uint8_t* to, int num_tiles) {
  const RowPiece at = piece_of_row(num_tiles * kWarpSize);
  const int tile = at.piece / kWarpSize, lane = at.piece % kWarpSize;
  if (tile >= num_tiles) return;
  const std::uint8_t* first = from + (at.row * kTileRows + lane / 4) * row_bytes;
  const PackedRows<kType> packed{to + at.row * kTileRows * row_bytes, num_tiles};
  pack_quants<kType>({first, first + 8 * row_bytes}, packed, tile, lane);
  if (lane % 4 == 0) pack_scales<kType>({first, first + 8 * row_bytes}, packed, tile, lane / 4);
}

// The integer of element `element` of a[j], product i of a tile, as block_quant() has it.
template <DType kType>
QUIRE_DEVICE int packed_quant(const std::uint32_t* words, int i, int j, int element) {
  if constexpr (PackedFormat<kType>::kIs8Bit) {
    return static_cast<std::int8_t>(words[2 * i + j / 2] >> (16 * (j % 2) + 8 * element));
  } else {
    return static_cast<int>(words[i] >> (4 * j + 16 * element) & 15u) - (kType == DType::kQ4_0 ? 8 : 0);
  }
}

// A warp unpacks a tile; a lane has a chunk of each of two blocks of two rows.
template <typename T, DType kType>
__global__ void unpack_weight_kernel(const std::uint8_t* from, std::int64_t row_bytes, Rows<T> to) {
  using Format = PackedFormat<kType>;
  const int num_tiles = to.size / kTileWidth;
  const RowPiece at = piece_of_row(num_tiles * kWarpSize);
  const int tile = at.piece / kWarpSize, lane = at.piece % kWarpSize;
  if (tile >= num_tiles) return;
  const PackedRows<kType> packed{const_cast<std::uint8_t*>(from) + at.row * kTileRows * row_bytes, num_tiles};
  std::uint32_t words[4 * Format::kVectors];
  QUIRE_UNROLL
  for (int v = 0; v < Format::kVectors; ++v) {
    const uint4 quants = load_global(reinterpret_cast<const uint4*>(packed.quants(tile)) + kWarpSize * v + lane);
    words[4 * v] = quants.x, words[4 * v + 1] = quants.y, words[4 * v + 2] = quants.z, words[4 * v + 3] = quants.w;
  }
  const TileScale scale = PackedScale<kType>::load(packed.scales(tile), tile, lane / 4).unpack();
  QUIRE_UNROLL
  for (int b = 0; b < kTileBlocks; ++b) {
    QUIRE_UNROLL
    for (int row = 0; row < 2; ++row) {
      float x[kChunk];
      QUIRE_UNROLL
      for (int k = 0; k < kChunk; ++k) {
        const int quant = packed_quant<kType>(words, 2 * b + k / 4, row + k % 4 / 2 * 2, k % 2);
        x[k] = __fmul_rn(scale.d[b][row], static_cast<float>(quant));
        if constexpr (Format::kHasMinimum) x[k] += scale.m[b][row];
      }
      to[at.row * kTileRows + lane / 4 + 8 * row].store(tile * (kTileWidth / kChunk) + 4 * b + lane % 4, x);
    }
  }
}

}  // namespace

bool is_packable(const TensorView& weight) {
  const DType type = weight.dtype;
  const bool is_format = type == DType::kQ4_0 || type == DType::kQ4_1 || type == DType::kQ4_K || type == DType::kQ8_0;
  return is_format && weight.rank == 2 && weight.dim(0) % kTileRows == 0 && weight.dim(1) % kTileWidth == 0;
}

void pack_weight(const TensorView& from, const TensorView& to, Stream stream) {
  const char* op = "pack_weight";
  require(is_packable(from) && from.is_dense(), op, "from", from,
          "dense Q4_0, Q4_1, Q4_K or Q8_0 [M, K], M a multiple of 16 and K of 64");
  require(is_shaped(to, from.dtype, {from.dim(0), from.dim(1)}) && to.is_dense(), op, "to", to, "of from's shape and type");
  require(reinterpret_cast<std::uintptr_t>(to.data) % 16 == 0, op, "to", to, "16-byte aligned");
  const std::int64_t tiles = from.dim(1) / kTileWidth;
  dispatch_packed(from.dtype, [&]<DType kType>() {
    launch(stream, pack_weight_kernel<kType>, row_pieces_shape(from.dim(0) / kTileRows, tiles * kWarpSize),
           from.as<const std::uint8_t>(), row_bytes(from.dtype, from.dim(1)), to.as<std::uint8_t>(), tiles);
  });
}

void unpack_weight(const TensorView& from, const TensorView& to, Stream stream) {
  const char* op = "unpack_weight";
  require(is_packable(from) && from.is_dense(), op, "from", from, "packed");
  require(is_activation(to.dtype) && is_shaped(to, to.dtype, {from.dim(0), from.dim(1)}), op, "to", to, "[M, K] BF16 or F16");
  const std::int64_t tiles = from.dim(1) / kTileWidth;
  dispatch_packed(from.dtype, [&]<DType kType>() {
    dispatch_activation(to.dtype, [&]<typename T>() {
      launch(stream, unpack_weight_kernel<T, kType>, row_pieces_shape(from.dim(0) / kTileRows, tiles * kWarpSize),
             from.as<const std::uint8_t>(), row_bytes(from.dtype, from.dim(1)), rows_of<T>(to));
    });
  });
}

}  // namespace quire::cuda
