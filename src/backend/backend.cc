#include "backend/backend.h"

#include "backend/cpu/cpu_backend.h"
#include "core/check.h"

#ifdef QUIRE_CUDA
#include "backend/cuda/cuda_backend.h"
#endif

namespace quire {

std::string to_string(Device device) { return device.kind == DeviceKind::kCpu ? "cpu" : fmt::format("cuda:{}", device.index); }

std::vector<Device> available_devices() {
  std::vector<Device> devices{{DeviceKind::kCpu, 0}};
#ifdef QUIRE_CUDA
  for (int i = 0; i < num_cuda_devices(); ++i) devices.push_back({DeviceKind::kCuda, i});
#endif
  return devices;
}

std::unique_ptr<Backend> create_backend(Device device, const BackendOptions& options) {
  if (device.kind == DeviceKind::kCpu) {
    if (device.index != 0) fail(ErrorCode::kUnsupported, "device cpu has index {}; there is only index 0", device.index);
    return std::make_unique<CpuBackend>(options);
  }
#ifdef QUIRE_CUDA
  return create_cuda_backend(device, options);
#else
  fail(ErrorCode::kUnsupported, "device {}: this quire was built without CUDA", to_string(device));
#endif
}

}  // namespace quire
