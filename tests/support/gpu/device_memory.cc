// simt/device_memory.h on a GPU: managed memory, which the host reads and writes too once the kernel has ended (emulator.cc makes
// launches wait). Without guards: compute-sanitizer watches the bounds there.
#include "simt/device_memory.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace simt {

DeviceMemory::DeviceMemory(std::size_t bytes, Fill fill) : bytes_(bytes) {
  if (cudaMallocManaged(&mapping_, std::max<std::size_t>(bytes, 1), cudaMemAttachGlobal) != cudaSuccess) throw std::bad_alloc();
  data_ = static_cast<unsigned char*>(mapping_);
  if (fill == Fill::kOnes && bytes > 0) std::memset(data_, 0xFF, bytes);
}

DeviceMemory::~DeviceMemory() { (void)cudaFree(mapping_); }

bool DeviceMemory::margins_intact() const { return true; }

}  // namespace simt
