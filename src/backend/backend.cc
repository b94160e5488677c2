// The one place that asks whether CUDA is built in.
#include "backend/backend.h"

#include "backend/cpu/cpu_backend.h"
#include "core/check.h"

namespace quire {

std::string to_string(Device device) { return device.kind == DeviceKind::kCpu ? "cpu" : fmt::format("cuda:{}", device.index); }

std::vector<Device> available_devices() { return {Device{}}; }

std::unique_ptr<Backend> create_backend(Device device, const BackendOptions& options) {
  if (device.kind == DeviceKind::kCpu) {
    if (device.index != 0)
      fail(ErrorCode::kInvalidArgument, "EngineOptions::device: there is one CPU, index {} is none", device.index);
    return std::make_unique<CpuBackend>(cpu::best_kernels(), options);
  }
  fail(ErrorCode::kUnsupported, "EngineOptions::device is {}: this build of quire has no CUDA backend", to_string(device));
}

}  // namespace quire
