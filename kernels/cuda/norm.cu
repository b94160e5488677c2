// Root mean square norms (Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4). A team of threads holds one row in registers, so that
// memory is read and written once: a few lanes for a head of 64 elements, a block of up to 1,024 threads for a hidden state. The
// team, and with it the order of the sum, depends on the width alone.
//
// 64 registers a thread (nvcc 13.0), the most that blocks of 1,024 can have, and 128 bytes of shared memory. Registers are what
// bounds an SM of an H200: it has room for 1,024 of its 2,048 threads, 8 blocks of 128 (heads), 4 of 256 (H 2,048), 2 of 512
// (H 4,096), or one of more. With 16 bytes a thread these have 16 KB in flight, with an addend 32 KB. The first is below the
// 27 KB that hide the latency of its memory, but a step's rows, some megabytes, were written by the op before and come from L2.
#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/float_dispatch.h"
#include "kernels/cuda/kernels.h"

namespace quire::cuda {
namespace {

constexpr int kMaxTeam = 1024;
constexpr int kThreadChunks = 4;  // of a row, at most, in the registers of one thread
constexpr std::int64_t kMaxWidth = std::int64_t{kMaxTeam} * kThreadChunks * kChunk;

template <typename T>
struct NormParams {
  Rows<T> x;                // [R, H]; with kAdd updated: the residual
  Rows<T> addend;           // [R, H]; only with kAdd
  Row<const float> weight;  // [H]
  Rows<T> out;              // [R, H]
  std::int64_t num_rows;
  float eps;
};

// threadIdx.x: in the team; threadIdx.y: the team's row in the block.
template <typename T, bool kAdd>
__global__ void __launch_bounds__(kMaxTeam) rms_norm_kernel(NormParams<T> p) {
  QUIRE_SHARED(partials, float[kWarpSize]);
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const int chunks = row < p.num_rows ? num_chunks(p.x.size) : 0;  // a team without a row goes along
  const int team = static_cast<int>(blockDim.x);
  float values[kThreadChunks][kChunk];
  float sum = 0.0f;
  QUIRE_UNROLL
  for (int i = 0; i < kThreadChunks; ++i) {
    const int chunk = static_cast<int>(threadIdx.x) + i * team;
    if (chunk >= chunks) continue;
    p.x[row].load(chunk, values[i]);
    if constexpr (kAdd) {
      float addend[kChunk];
      p.addend[row].load(chunk, addend);
      QUIRE_UNROLL
      for (int k = 0; k < kChunk; ++k) values[i][k] += addend[k];
      p.x[row].store(chunk, values[i]);
      round_to<T>(values[i]);
    }
    QUIRE_UNROLL
    for (int k = 0; k < kChunk; ++k) sum = fmaf(values[i][k], values[i][k], sum);
  }
  sum = team <= kWarpSize ? warp_reduce(sum, team, Sum()) : block_reduce(sum, partials, 0.0f, Sum());
  const float inverse = 1.0f / sqrtf(sum / static_cast<float>(p.x.size) + p.eps);
  QUIRE_UNROLL
  for (int i = 0; i < kThreadChunks; ++i) {
    const int chunk = static_cast<int>(threadIdx.x) + i * team;
    if (chunk >= chunks) continue;
    float weight[kChunk];
    p.weight.load(chunk, weight);
    QUIRE_UNROLL
    for (int k = 0; k < kChunk; ++k) values[i][k] = values[i][k] * inverse * weight[k];
    p.out[row].store(chunk, values[i]);
  }
}

LaunchShape norm_shape(std::int64_t rows, std::int64_t width) {
  constexpr std::int64_t kBlock = 128;  // threads of a block of small teams
  const std::int64_t chunks = (width + kChunk - 1) / kChunk;
  std::int64_t team = 1;
  if (chunks <= kWarpSize) {
    while (team < chunks) team *= 2;
  } else {
    team = round_up_to(chunks, kWarpSize);
    if (team > kMaxTeam) team = kMaxTeam;
  }
  const std::int64_t teams = team <= kWarpSize ? kBlock / team : 1;
  return {.grid = dim3(grid_x((rows + teams - 1) / teams)),
          .block = dim3(static_cast<unsigned>(team), static_cast<unsigned>(teams))};
}

void check_norm(const char* op, const char* x_name, const TensorView& x, const TensorView& weight, const TensorView& out) {
  require(x.rank == 2 && is_activation(x.dtype), op, x_name, x, "[R, H] BF16 or F16");
  require(x.dim(1) > 0 && x.dim(1) <= kMaxWidth, op, "H", x.dim(1), "1 to 32,768");
  require(is_shaped(x, x.dtype, {x.dim(0), x.dim(1)}), op, x_name, x, "rows that do not overlap");
  require(is_shaped(weight, DType::kF32, {x.dim(1)}), op, "weight", weight, "[H] F32");
  require(is_shaped(out, x.dtype, {x.dim(0), x.dim(1)}), op, "out", out, "of x's shape and type");
}

template <typename T>
Row<const float> row_of(const TensorView& vector) {
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(vector.data) % 16 == 0;
  return {vector.as<const float>(), static_cast<int>(vector.dim(0)), is_aligned};
}

}  // namespace

void rms_norm(const RmsNormArgs& args, Stream stream) {
  check_norm("rms_norm", "x", args.x, args.weight, args.out);
  const std::int64_t rows = args.x.dim(0);
  dispatch_activation(args.x.dtype, [&]<typename T>() {
    const NormParams<T> params{rows_of<T>(args.x), {}, row_of<T>(args.weight), rows_of<T>(args.out), rows, args.eps};
    launch(stream, rms_norm_kernel<T, false>, norm_shape(rows, args.x.dim(1)), params);
  });
}

void add_rms_norm(const AddRmsNormArgs& args, Stream stream) {
  check_norm("add_rms_norm", "residual", args.residual, args.weight, args.out);
  const std::int64_t rows = args.residual.dim(0);
  require(is_shaped(args.x, args.residual.dtype, {rows, args.residual.dim(1)}), "add_rms_norm", "x", args.x,
          "of residual's shape and type");
  dispatch_activation(args.x.dtype, [&]<typename T>() {
    const NormParams<T> params{
        rows_of<T>(args.residual), rows_of<T>(args.x), row_of<T>(args.weight), rows_of<T>(args.out), rows, args.eps};
    launch(stream, rms_norm_kernel<T, true>, norm_shape(rows, args.residual.dim(1)), params);
  });
}

}  // namespace quire::cuda
