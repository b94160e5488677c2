#include "simt/device_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <new>

#include "simt/emulator.h"
#include "simt/fiber.h"

#if defined(SIMT_ASAN)
#include <sanitizer/asan_interface.h>
#endif

namespace simt {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kAlignment = 256;
constexpr std::size_t kGuardBytes = std::size_t{4} << 30;
constexpr unsigned char kMargin = 0xA5;

constexpr std::size_t round_up(std::size_t value, std::size_t step) { return (value + step - 1) / step * step; }

// All living ones. Few, so that a list will do. Never destroyed: objects that live as long as the process may own some.
std::vector<const DeviceMemory*>& living() {
  static auto* const memories = new std::vector<const DeviceMemory*>;
  return *memories;
}

bool contains(const DeviceMemory& memory, const void* address, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  return at >= begin && at - begin <= memory.bytes() && memory.bytes() - (at - begin) >= bytes;
}

}  // namespace

std::size_t DeviceMemory::mapped_bytes() const { return std::max(round_up(bytes_, kPageBytes), kPageBytes); }

DeviceMemory::DeviceMemory(std::size_t bytes, Fill fill) : bytes_(bytes) {
  const std::size_t total = mapped_bytes() + 2 * kGuardBytes;
  mapping_ = mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED) throw std::bad_alloc();
  unsigned char* const pages = static_cast<unsigned char*>(mapping_) + kGuardBytes;
  if (mprotect(pages, mapped_bytes(), PROT_READ | PROT_WRITE) != 0) {
    munmap(mapping_, total);
    throw std::bad_alloc();
  }
  // As close to the guard behind as the alignment allows; never better aligned than cudaMalloc promises.
  data_ = pages + mapped_bytes() - std::max(round_up(bytes_, kAlignment), kAlignment);
  if (fill == Fill::kOnes && bytes_ > 0) std::memset(data_, 0xFF, bytes_);
  set_margins();
  living().push_back(this);
}

DeviceMemory::~DeviceMemory() {
  std::erase(living(), this);
#if defined(SIMT_ASAN)
  unsigned char* const pages = static_cast<unsigned char*>(mapping_) + kGuardBytes;
  ASAN_UNPOISON_MEMORY_REGION(pages, data_ - pages);
  ASAN_UNPOISON_MEMORY_REGION(data_ + bytes_, pages + mapped_bytes() - data_ - bytes_);
#endif
  munmap(mapping_, mapped_bytes() + 2 * kGuardBytes);
}

void DeviceMemory::set_margins() {
  unsigned char* const pages = static_cast<unsigned char*>(mapping_) + kGuardBytes;
  std::fill(pages, data_, kMargin);
  std::fill(data_ + bytes_, pages + mapped_bytes(), kMargin);
#if defined(SIMT_ASAN)
  ASAN_POISON_MEMORY_REGION(pages, data_ - pages);
  ASAN_POISON_MEMORY_REGION(data_ + bytes_, pages + mapped_bytes() - data_ - bytes_);
#endif
}

bool DeviceMemory::margins_intact() const {
#if defined(SIMT_ASAN)
  return true;  // poisoned: the access itself was reported
#else
  const unsigned char* const pages = static_cast<const unsigned char*>(mapping_) + kGuardBytes;
  const auto intact = [](unsigned char byte) { return byte == kMargin; };
  return std::all_of(pages, static_cast<const unsigned char*>(data_), intact) &&
         std::all_of(static_cast<const unsigned char*>(data_) + bytes_, pages + mapped_bytes(), intact);
#endif
}

bool in_device_memory(const void* address, std::size_t bytes) {
  const auto& memories = living();
  return std::any_of(memories.begin(), memories.end(),
                     [&](const DeviceMemory* memory) { return contains(*memory, address, bytes); });
}

std::string describe_device_address(const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const DeviceMemory* nearest = nullptr;
  std::uintptr_t distance = kGuardBytes;
  for (const DeviceMemory* memory : living()) {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory->data());
    const std::uintptr_t end = begin + memory->bytes();
    const std::uintptr_t d = at < begin ? begin - at : at > end ? at - end : 0;
    if (d < distance) {
      nearest = memory;
      distance = d;
    }
  }
  if (nearest == nullptr) return fmt::format("address {}, near no device buffer", address);
  if (address < nearest->data())
    return fmt::format("address {}, {} bytes before a device buffer of {} bytes", address, distance, nearest->bytes());
  return fmt::format("address {}, at offset {} of a device buffer of {} bytes", address,
                     at - reinterpret_cast<std::uintptr_t>(nearest->data()), nearest->bytes());
}

void check_device_margins() {
  for (const DeviceMemory* memory : living()) {
    if (!memory->margins_intact())
      throw Error(fmt::format("simt: something was written beside a device buffer of {} bytes", memory->bytes()));
  }
}

}  // namespace simt
