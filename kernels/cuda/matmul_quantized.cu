// Products of few rows with quantised weights, 4 or 8 bits: bound by the bytes of the weights, which are read once for eight
// rows, as they are. The integers go into the tensor cores exactly; each block of 32 is summed in float and scaled in float, so
// that the only rounding is that of float sums. The fragment's eight columns are the rows of x: one row or eight, the work, and
// the bits of each, are the same.
#include <algorithm>

#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/float_dispatch.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/packed_weight.cuh"

namespace quire::cuda {
namespace {

constexpr int kWarps = 8;  // share the tiles of sixteen rows
constexpr int kColumns = 8;

// Tiles that a warp has on their way, and blocks that an SM is to hold: together 27 KB or more, which hide the latency of an
// H200's memory. Four blocks leave 64 registers a thread, too few for two tiles ahead.
template <DType kType>
constexpr int kTilesAhead = PackedFormat<kType>::kIs8Bit ? 1 : 2;
template <DType kType>
constexpr int kBlocksPerSm = PackedFormat<kType>::kIs8Bit ? 4 : 3;

template <typename T>
struct QuantizedMatmulParams {
  Rows<const T> x;  // [R, K]
  std::int64_t num_rows;
  std::uint8_t* weight;  // packed, [M, K]
  std::int64_t weight_row_bytes;
  const T* bias;            // [M] or nullptr
  void* out;                // [R, M] T, or F32
  std::int64_t out_stride;  // elements
  bool is_out_float;
};

template <typename T>
constexpr std::uint32_t kOnes = 0x3f803f80u;  // two of BFloat16
template <>
inline constexpr std::uint32_t kOnes<Half> = 0x3c003c00u;

// One tile as a lane holds it while it waits for memory.
template <DType kType>
struct PackedTile {
  uint4 quants[PackedFormat<kType>::kVectors];
  PackedScale<kType> scale;

  QUIRE_DEVICE void load(const PackedRows<kType>& rows, int tile, int lane) {
    QUIRE_UNROLL
    for (int v = 0; v < PackedFormat<kType>::kVectors; ++v)
      quants[v] = load_global(reinterpret_cast<const uint4*>(rows.quants(tile)) + kWarpSize * v + lane);
    scale = PackedScale<kType>::load(rows.scales(tile), tile, lane / 4);
  }
};

// The operand of product i of 4 of a tile.
template <typename T, DType kType>
QUIRE_DEVICE void unpack_operand(const PackedTile<kType>& tile, int i, std::uint32_t (&a)[4]) {
  if constexpr (PackedFormat<kType>::kIs8Bit) {
    const uint4 quants = tile.quants[i / 2];
    const std::uint32_t low = i % 2 == 0 ? quants.x : quants.z, high = i % 2 == 0 ? quants.y : quants.w;
    a[0] = unpack_bytes<T>(low);
    a[1] = unpack_bytes<T>(low >> 16);
    a[2] = unpack_bytes<T>(high);
    a[3] = unpack_bytes<T>(high >> 16);
  } else {
    const std::uint32_t words[] = {tile.quants[0].x, tile.quants[0].y, tile.quants[0].z, tile.quants[0].w};
    unpack_nibbles<T>(words[i], a);
  }
}

// y [16, 8] += the tile's weights * x. `x`: of either block, the lane's words of its row.
template <typename T, DType kType>
QUIRE_DEVICE void multiply_tile(const PackedTile<kType>& tile, const std::uint32_t (&x)[kTileBlocks][4], float (&y)[4]) {
  using Format = PackedFormat<kType>;
  const TileScale scale = tile.scale.unpack();
  QUIRE_UNROLL
  for (int b = 0; b < kTileBlocks; ++b) {
    float dot[4] = {}, sum[4] = {};  // of q x (4 bits: of (16 + q) x), and of x
    QUIRE_UNROLL
    for (int half = 0; half < 2; ++half) {
      std::uint32_t a[4];
      unpack_operand<T, kType>(tile, 2 * b + half, a);
      mma_m16n8k16<T>(dot, a, x[b][2 * half], x[b][2 * half + 1]);
      if constexpr (!Format::kIs8Bit) {
        const std::uint32_t ones[4] = {kOnes<T>, kOnes<T>, kOnes<T>, kOnes<T>};
        mma_m16n8k16<T>(sum, ones, x[b][2 * half], x[b][2 * half + 1]);
      }
    }
    QUIRE_UNROLL
    for (int i = 0; i < 4; ++i) {
      constexpr float kExcess = Format::kIs8Bit ? 0.0f : kType == DType::kQ4_0 ? -24.0f : -16.0f;
      if constexpr (!Format::kIs8Bit) dot[i] = fmaf(kExcess, sum[i], dot[i]);
      y[i] = fmaf(scale.d[b][i / 2], dot[i], y[i]);
      if constexpr (Format::kHasMinimum) y[i] = fmaf(scale.m[b][i / 2], sum[i], y[i]);
    }
  }
}

template <typename T>
QUIRE_DEVICE void load_x(const Row<const T>& row, bool exists, int tile, int t, std::uint32_t (&x)[kTileBlocks][4]) {
  QUIRE_UNROLL
  for (int b = 0; b < kTileBlocks; ++b) {
    if (exists) {
      row.load_words(tile * (kTileWidth / kChunk) + 4 * b + t, x[b]);
    } else {
      x[b][0] = x[b][1] = x[b][2] = x[b][3] = 0;
    }
  }
}

template <typename T, DType kType>
__global__ void __launch_bounds__(kWarps* kWarpSize, kBlocksPerSm<kType>) matmul_quantized_kernel(QuantizedMatmulParams<T> p) {
  constexpr int kStride = kTileRows + 4;  // no two lanes of a store meet in a bank
  QUIRE_SHARED(partial, float[kWarps][kColumns][kStride]);
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * kColumns, x_row = first_row + lane / 4;
  const PackedRows<kType> weight{p.weight + static_cast<std::int64_t>(blockIdx.x) * kTileRows * p.weight_row_bytes,
                                 p.x.size / kTileWidth};
  const bool exists = x_row < p.num_rows;
  const Row<const T> row = p.x[exists ? x_row : 0];
  float y[4] = {};
  constexpr int kAhead = kTilesAhead<kType>;
  PackedTile<kType> ahead[kAhead];
  QUIRE_UNROLL
  for (int s = 0; s < kAhead; ++s) {
    if (warp + s * kWarps < weight.num_tiles) ahead[s].load(weight, warp + s * kWarps, lane);
  }
  for (int first = warp; first < weight.num_tiles; first += kAhead * kWarps) {
    QUIRE_UNROLL
    for (int s = 0; s < kAhead; ++s) {
      const int i = first + s * kWarps;
      if (i >= weight.num_tiles) break;
      const PackedTile<kType> tile = ahead[s];
      if (i + kAhead * kWarps < weight.num_tiles) ahead[s].load(weight, i + kAhead * kWarps, lane);
      std::uint32_t x[kTileBlocks][4];
      load_x(row, exists, i, lane % 4, x);
      multiply_tile<T, kType>(tile, x, y);
    }
  }
  QUIRE_UNROLL
  for (int i = 0; i < 4; ++i) partial[warp][2 * (lane % 4) + i % 2][lane / 4 + i / 2 * 8] = y[i];
  __syncthreads();
  const int column = static_cast<int>(threadIdx.x) / kTileRows, m = static_cast<int>(threadIdx.x) % kTileRows;
  if (column >= kColumns || first_row + column >= p.num_rows) return;
  float sum = partial[0][column][m];
  for (int w = 1; w < kWarps; ++w) sum += partial[w][column][m];
  const std::int64_t outer = static_cast<std::int64_t>(blockIdx.x) * kTileRows + m;
  if (p.bias != nullptr) sum += widen(load_global(p.bias + outer));
  const std::int64_t place = (first_row + column) * p.out_stride + outer;
  if (p.is_out_float) {
    static_cast<float*>(p.out)[place] = sum;
  } else {
    static_cast<T*>(p.out)[place] = narrow<T>(sum);
  }
}

void check_projection(const char* op, const TensorView& x, const Projection& projection) {
  const TensorView& weight = projection.weight;
  require(is_packable(weight) && weight.is_dense(), op, "weight", weight,
          "packed: dense Q4_0, Q4_1, Q4_K or Q8_0 [M, K], M a multiple of 16 and K of 64");
  require(weight.dim(1) == x.dim(1), op, "weight", weight, "[M, K] with x's K");
  require(reinterpret_cast<std::uintptr_t>(weight.data) % 16 == 0, op, "weight", weight, "16-byte aligned");
  if (projection.bias.data != nullptr)
    require(is_shaped(projection.bias, x.dtype, {weight.dim(0)}), op, "bias", projection.bias, "[M] of x's type");
  const DType out = projection.out.dtype;
  require((out == x.dtype || out == DType::kF32) && is_shaped(projection.out, out, {x.dim(0), weight.dim(0)}), op, "out",
          projection.out, "[R, M] F32 or of x's type");
}

// Rows [first, first + count) of x and out.
void multiply_rows(const TensorView& whole_x, const Projection& projection, std::int64_t first, std::int64_t count,
                   Stream stream) {
  const TensorView x = whole_x.rows(first, count), out = projection.out.rows(first, count);
  const LaunchShape shape{
      .grid = dim3(grid_x(projection.weight.dim(0) / kTileRows), static_cast<unsigned>((count + kColumns - 1) / kColumns)),
      .block = dim3(kWarps * kWarpSize)};
  dispatch_activation(x.dtype, [&]<typename T>() {
    const QuantizedMatmulParams<T> params{rows_of<const T>(x),
                                          count,
                                          projection.weight.as<std::uint8_t>(),
                                          row_bytes(projection.weight.dtype, x.dim(1)),
                                          projection.bias.as<const T>(),
                                          out.data,
                                          out.outer_stride,
                                          out.dtype == DType::kF32};
    dispatch_packed(projection.weight.dtype,
                    [&]<DType kType>() { launch(stream, matmul_quantized_kernel<T, kType>, shape, params); });
  });
}

}  // namespace

void matmul_quantized(const MatmulArgs& args, Stream stream) {
  const char* op = "matmul_quantized";
  require(args.x.rank == 2 && is_activation(args.x.dtype), op, "x", args.x, "[R, K] BF16 or F16");
  const std::int64_t rows = args.x.dim(0);
  require(is_shaped(args.x, args.x.dtype, {rows, args.x.dim(1)}), op, "x", args.x, "rows that do not overlap");
  require(args.num_projections >= 0 && args.num_projections <= MatmulArgs::kMaxProjections, op, "num_projections",
          args.num_projections, "0 to 3");
  for (int i = 0; i < args.num_projections; ++i) check_projection(op, args.x, args.projections[i]);
  constexpr std::int64_t kMostRows = 65535 * kColumns;  // of a grid
  for (int i = 0; i < args.num_projections; ++i) {
    for (std::int64_t first = 0; first < rows; first += kMostRows)
      multiply_rows(args.x, args.projections[i], first, std::min(kMostRows, rows - first), stream);
  }
}

}  // namespace quire::cuda
