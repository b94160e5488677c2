// launch(): a kernel on a stream, checked. The only place of <<<>>>'s meaning; launchers choose a LaunchShape and call it.
// A failed launch throws Error(kDevice). On a host compiler CUDA's calls come from <simt/launch.h>, which plays them and runs the
// kernel there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/check.h"
#include "kernels/cuda/platform.cuh"
#include "kernels/cuda/stream.h"

#if !defined(__CUDACC__)
#include <simt/launch.h>
#endif

namespace quire::cuda {

struct LaunchShape {
  dim3 grid;                      // blocks
  dim3 block;                     // threads
  std::size_t dynamic_bytes = 0;  // of shared memory, beside the kernel's static arrays
};

// Blocks along x, the one direction of a grid that takes more than 65,535 of them. Refuses what no grid holds.
inline unsigned grid_x(std::int64_t blocks) {
  constexpr std::int64_t kMost = 0x7fffffff;
  if (blocks < 0 || blocks > kMost) refuse("kernel launch", "number of blocks", blocks, "0 to 2,147,483,647");
  return static_cast<unsigned>(blocks);
}

// Throws Error(kDevice) naming `what` unless `status` is success. Clears an error that does not stick to the device.
inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();
  fail_call(what, cudaGetErrorString(status), cudaGetErrorName(status));
}

template <typename... Params, typename... Args>
void launch(Stream stream, void (*kernel)(Params...), const LaunchShape& shape, Args... args) {
  static_assert(sizeof...(Params) == sizeof...(Args));
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  // Without asking a block has 48 KB, of which static arrays take their part.
  if (shape.dynamic_bytes > 0) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shape.dynamic_bytes)),
          "cudaFuncSetAttribute");
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.dynamic_bytes;
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...), "kernel launch");
}

}  // namespace quire::cuda
