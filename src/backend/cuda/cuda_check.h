// cuda_check: the one place where a status of the CUDA runtime becomes an Error.
#pragma once

#include <cuda_runtime.h>

#include "core/check.h"

namespace quire {

// Throws Error(kDevice), or kOutOfMemory, naming the call, unless `status` is success. An error that does not stick to the
// device is taken off it.
inline void cuda_check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) [[likely]]
    return;
  (void)cudaGetLastError();
  const ErrorCode code = status == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kDevice;
  fail(code, "{}: {} ({})", call, cudaGetErrorString(status), cudaGetErrorName(status));
}

}  // namespace quire
