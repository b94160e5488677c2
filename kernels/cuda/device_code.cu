// Whether the current device can run what nvcc made of the kernels: a build holds machine code for some architectures, and code
// that the driver translates for newer ones, if it is not older than the toolkit and may and can do so.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"

namespace quire::cuda {
namespace {

__global__ void probe_kernel() {}

}  // namespace

const char* missing_code() {
  cudaFuncAttributes attributes = {};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, probe_kernel);
  switch (status) {
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorInvalidKernelImage:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorJitCompilerNotFound:
    case cudaErrorJitCompilationDisabled:
      (void)cudaGetLastError();
      return cudaGetErrorString(status);
    default:
      check(status, "cudaFuncGetAttributes");
      return nullptr;
  }
}

}  // namespace quire::cuda
