// copy_async(): bytes between any two places, device or host, in the order of a stream.
#pragma once

#include <cstddef>

#include "kernels/cuda/launch.h"

namespace quire::cuda {

// REQUIRES: host memory stays as it is until the stream is past the copy; it should be pinned, else the call may wait.
inline void copy_async(void* to, const void* from, std::size_t bytes, Stream stream) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
}

}  // namespace quire::cuda
