#include "backend/cpu/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include "core/check.h"
#include "core/math.h"

namespace quire {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::uintptr_t page_bytes() { return static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE)); }

void free_small(void* data, std::size_t) { std::free(data); }
void free_pages(void* data, std::size_t bytes) { munmap(data, round_up(bytes, kHugePage)); }

void* map_pages(std::size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  madvise(data, bytes, MADV_HUGEPAGE);  // advice: no matter if refused
  return data;
}

// The number after `key` at the beginning of a line; an empty key: the file's first word. None if the word is not a number.
std::optional<std::size_t> read_number(const std::filesystem::path& path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  if (!key.empty()) {
    while (file >> word && word != key) file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  std::size_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

// What the control group in `directory` leaves; its page cache could be had back.
std::size_t left_in_group(const std::filesystem::path& directory) {
  const auto limit = read_number(directory / "memory.max", "");
  const auto used = read_number(directory / "memory.current", "");
  if (!limit || !used) return std::numeric_limits<std::size_t>::max();
  const std::size_t cache = read_number(directory / "memory.stat", "inactive_file").value_or(0);
  const std::size_t needed = *used - std::min(*used, cache);
  return *limit - std::min(*limit, needed);
}

// The path after "0::" in /proc/self/cgroup.
std::string own_group(const std::filesystem::path& root) {
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::/")) return line.substr(4);
  }
  return "";
}

}  // namespace

DeviceBuffer allocate_host_memory(std::size_t bytes) {
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max() / 2;
  const bool small = bytes < kHugePage;
  void* data = nullptr;
  if (small) {
    data = std::aligned_alloc(kAlignment, round_up(std::max<std::size_t>(bytes, 1), kAlignment));
  } else if (bytes <= kMost) {
    data = map_pages(round_up(bytes, kHugePage));
  }
  if (data == nullptr)
    fail(ErrorCode::kOutOfMemory, "the host cannot give {} bytes ({} available)", bytes, available_host_bytes());
  return {data, bytes, small ? free_small : free_pages};
}

void PageList::add(const void* data, std::size_t bytes, Access access) {
  const std::uintptr_t page = page_bytes();
  std::uintptr_t at = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t end = at + bytes;
  std::size_t& last = last_[static_cast<std::size_t>(access)];
  if (last > 0) {
    const std::uintptr_t last_end = pieces_[last - 1].end;
    if (at >= last_end && at - last_end < page) at = last_end;
  }
  while (at < end) {
    const std::uintptr_t next = std::min(end, (at / kHugePage + 1) * kHugePage);
    if (at % kHugePage != 0 && last > 0 && pieces_[last - 1].end == at) {
      pieces_[last - 1].end = next;
    } else {
      pieces_.push_back({at, next, access});
      last = pieces_.size();
    }
    at = next;
  }
}

void PageList::bring_in(std::int64_t piece) const {
#if defined(MADV_POPULATE_READ) && defined(MADV_POPULATE_WRITE)
  const auto [begin, end, access] = pieces_[static_cast<std::size_t>(piece)];
  const std::uintptr_t first = begin / page_bytes() * page_bytes();
  // NOLINTNEXTLINE(performance-no-int-to-ptr): addresses are cut as numbers
  madvise(reinterpret_cast<void*>(first), end - first, access == Access::kRead ? MADV_POPULATE_READ : MADV_POPULATE_WRITE);
#else
  (void)piece;
#endif
}

std::size_t available_host_bytes(const std::filesystem::path& root) {
  constexpr std::size_t kKilobyte = 1024;
  std::size_t bytes = read_number(root / "proc/meminfo", "MemAvailable:").value_or(0) * kKilobyte;
  const std::filesystem::path groups = root / "sys/fs/cgroup";
  std::filesystem::path group = groups;
  bytes = std::min(bytes, left_in_group(group));
  for (const std::filesystem::path& name : std::filesystem::path(own_group(root))) {
    group /= name;
    bytes = std::min(bytes, left_in_group(group));
  }
  return bytes;
}

}  // namespace quire
