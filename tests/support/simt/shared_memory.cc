#include "simt/shared_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "simt/fiber.h"

#if defined(SIMT_ASAN)
#include <sanitizer/asan_interface.h>
#endif

namespace simt {
namespace {

constexpr std::size_t kBankRow = 128;  // bytes of all 32 banks
constexpr unsigned char kGapByte = 0xA5;

}  // namespace

SharedMemory::SharedMemory() : bytes_(static_cast<unsigned char*>(std::aligned_alloc(4096, kCapacity))) {
  if (bytes_ == nullptr) throw std::bad_alloc();
  std::memset(bytes_, kGapByte, kCapacity);
}

SharedMemory::~SharedMemory() {
#if defined(SIMT_ASAN)
  ASAN_UNPOISON_MEMORY_REGION(bytes_, kCapacity);
#endif
  std::free(bytes_);
}

void SharedMemory::prepare(std::size_t dynamic_bytes, std::size_t most_bytes) {
#if defined(SIMT_ASAN)
  ASAN_UNPOISON_MEMORY_REGION(bytes_, kCapacity);
#endif
  if (!ranges_.empty()) std::memset(bytes_, kGapByte, std::min(kCapacity, ranges_.back().end + kBankRow));
#if defined(SIMT_ASAN)
  ASAN_POISON_MEMORY_REGION(bytes_, kCapacity);
#endif
  ranges_.clear();
  static_bytes_ = 0;
  most_bytes_ = most_bytes;
  add(nullptr, "dynamic shared memory", 0, dynamic_bytes);
}

void* SharedMemory::array(const void* key, std::size_t bytes, const char* name) {
  for (const Range& range : ranges_) {
    if (range.key == key) return bytes_ + range.begin;
  }
  const std::size_t begin = (ranges_.back().end + kBankRow - 1) / kBankRow * kBankRow + kBankRow;
  static_bytes_ += (bytes + 15) / 16 * 16;
  const std::size_t dynamic_bytes = ranges_.front().end, unit = dynamic_bytes > 0 ? kDynamicAlignment : 1;
  const std::size_t used = (static_bytes_ + unit - 1) / unit * unit + dynamic_bytes;
  if (static_bytes_ > kWithoutAsking || used > most_bytes_ || begin + bytes > kCapacity) return nullptr;
  return add(key, name, begin, bytes);
}

void* SharedMemory::add(const void* key, const char* name, std::size_t begin, std::size_t bytes) {
  ranges_.push_back({key, name, begin, begin + bytes});
#if defined(SIMT_ASAN)
  ASAN_UNPOISON_MEMORY_REGION(bytes_ + begin, bytes);
#endif
  std::memset(bytes_ + begin, 0xFF, bytes);
  return bytes_ + begin;
}

bool SharedMemory::in_use(const void* address, std::size_t bytes) const {
  if (!owns(address)) return false;
  const std::size_t begin = offset(address);
  return std::any_of(ranges_.begin(), ranges_.end(),
                     [&](const Range& range) { return begin >= range.begin && begin + bytes <= range.end; });
}

std::string SharedMemory::describe(std::size_t offset) const {
  const Range* nearest = &ranges_.front();
  for (const Range& range : ranges_) {
    if (range.begin <= offset && range.begin < range.end) nearest = &range;
  }
  return fmt::format("{} + {} bytes", nearest->name, offset - nearest->begin);
}

bool SharedMemory::gaps_intact() const {
#if defined(SIMT_ASAN)
  return true;  // poisoned: the access itself was reported
#else
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    const std::size_t end = i + 1 < ranges_.size() ? ranges_[i + 1].begin : std::min(kCapacity, ranges_[i].end + kBankRow);
    if (!std::all_of(bytes_ + ranges_[i].end, bytes_ + end, [](unsigned char byte) { return byte == kGapByte; })) return false;
  }
  return true;
#endif
}

}  // namespace simt
