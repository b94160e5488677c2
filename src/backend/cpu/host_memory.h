// Host memory of the CPU backend: large allocations, and how much the system would still give.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "backend/backend.h"

namespace quire {

// Uninitialised, 64-byte aligned; from 2 MiB on whole pages, huge ones if the system has them. Throws Error(kOutOfMemory).
DeviceBuffer allocate_host_memory(std::size_t bytes);

// The pages of some stretches of memory, cut into pieces at the edges of huge pages, for threads to bring in: to read them from
// their file, or to get new ones. That is advice to the system, which does so anyhow when they are touched.
class PageList {
 public:
  enum class Access : std::uint8_t { kRead, kWrite };

  // A stretch that begins where the one before of the same access ends, or less than a page behind, continues it.
  void add(const void* data, std::size_t bytes, Access access);
  std::int64_t size() const { return static_cast<std::int64_t>(pieces_.size()); }
  void bring_in(std::int64_t piece) const;

 private:
  struct Piece {
    std::uintptr_t begin, end;
    Access access;
  };
  std::vector<Piece> pieces_;
  std::array<std::size_t, 2> last_{};  // number of the last piece of each access, from 1; 0: none
};

// What the system has available (MemAvailable), or what this process's control groups (version 2) leave of their limits, if that
// is less. `root` is the file system's root: tests bring their own /proc and /sys.
std::size_t available_host_bytes(const std::filesystem::path& root = "/");

}  // namespace quire
