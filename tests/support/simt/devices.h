// Which devices the played CUDA runtime has: one, but for the tests of several, which share memory and streams. It has what every
// GPU from sm_80 on has, and no more, but for the tests of others.
#pragma once

#include <cstddef>

#include "simt/cuda/cuda_runtime.h"

namespace simt {

void set_num_devices(int count);

struct DeviceModel {
  int major = 8, minor = 0;                    // compute capability
  std::size_t block_shared_bytes = 99 * 1024;  // for those that ask, as sm_86, sm_89 and sm_120 give; sm_80 has 163, sm_90 227
  cudaError_t code = cudaSuccess;              // what it says of this build's kernels: whether they run on it
};
void set_device_model(const DeviceModel& model);

}  // namespace simt
