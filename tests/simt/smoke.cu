#include "kernels/cuda/intrinsics.cuh"
#include "kernels/cuda/launch.h"

namespace quire::cuda {
namespace {

// Sums of rows: cp.async into dynamic memory, shuffles, a static array across warps.
__global__ void __launch_bounds__(128) row_sum_kernel(const float* __restrict__ x, float* __restrict__ sums, int columns) {
  QUIRE_DYNAMIC_SHARED(bytes);
  QUIRE_SHARED(partial, float[4]);
  float* const row = reinterpret_cast<float*>(bytes);
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread * 4; i < columns; i += static_cast<int>(blockDim.x) * 4)
    cp_async_16(row + i, x + blockIdx.x * columns + i, min(16, (columns - i) * 4));
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  float sum = 0.0f;
  for (int i = thread; i < columns; i += static_cast<int>(blockDim.x)) sum += row[i];
  QUIRE_UNROLL
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (thread % 32 == 0) partial[thread / 32] = sum;
  __syncthreads();
  if (thread == 0) store_global(sums + blockIdx.x, partial[0] + partial[1] + partial[2] + partial[3]);
}

}  // namespace

void row_sum(const float* x, float* sums, int rows, int columns, Stream stream) {
  launch(stream, row_sum_kernel, {dim3(static_cast<unsigned>(rows)), dim3(128), static_cast<std::size_t>((columns + 3) / 4 * 16)},
         x, sums, columns);
}

}  // namespace quire::cuda
