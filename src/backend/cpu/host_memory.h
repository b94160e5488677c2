// Host memory of the CPU backend: large allocations, and how much the system would still give.
#pragma once

#include <cstddef>
#include <filesystem>

#include "backend/backend.h"

namespace quire {

// Uninitialised, 64-byte aligned; from 2 MiB on whole pages, huge ones if the system has them. Throws Error(kOutOfMemory).
DeviceBuffer allocate_host_memory(std::size_t bytes);

// What the system has available (MemAvailable), or what this process's control groups (version 2) leave of their limits, if that
// is less. `root` is the file system's root: tests bring their own /proc and /sys.
std::size_t available_host_bytes(const std::filesystem::path& root = "/");

}  // namespace quire
