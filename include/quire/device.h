// Devices on which an engine can run.
#pragma once

#include <string>
#include <vector>

namespace quire {

enum class DeviceKind { kCpu, kCuda };

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;  // 0-based; always 0 for the CPU

  bool operator==(const Device&) const = default;
};

// "cpu", "cuda:0".
std::string to_string(Device device);

// Devices that this build can use on this machine, the CPU first. Never throws: a broken driver is an absent device.
std::vector<Device> available_devices();

}  // namespace quire
