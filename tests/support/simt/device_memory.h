// DeviceBuffer<T>: device memory for tests. Aligned to 256 bytes and no more, like cudaMalloc's; 4 GiB of inaccessible addresses
// on both sides, so that a wrong index faults instead of meeting a neighbour; what is left of its first and last page is poisoned
// under AddressSanitizer and else checked after every launch. Starts as 0xFF bytes (NaN, -1). Host code reads and writes it.
// The emulator refuses load_global, store_global and cp_async_16 outside of every DeviceBuffer.
#pragma once

#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace simt {

class DeviceMemory {
 public:
  enum class Fill { kOnes, kSparse };

  // kSparse: zeros, and pages cost memory only once touched: for tests that address beyond 2^32 elements.
  explicit DeviceMemory(std::size_t bytes, Fill fill = Fill::kOnes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  // Whether nothing was written beside the buffer, in its first and last page.
  bool margins_intact() const;

 private:
  void set_margins();
  std::size_t mapped_bytes() const;  // accessible ones

  void* mapping_ = nullptr;  // accessible from kGuardBytes on
  unsigned char* data_ = nullptr;
  std::size_t bytes_;
};

// Whether all of [address, address + bytes) lies in one living DeviceMemory.
bool in_device_memory(const void* address, std::size_t bytes);
// "device address 0x7f..., 4,096 bytes behind the end of a buffer of 1,024 bytes"
std::string describe_device_address(const void* address);
// Throws Error naming a buffer beside which something was written.
void check_device_margins();

template <typename T>
class DeviceBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit DeviceBuffer(std::size_t size, DeviceMemory::Fill fill = DeviceMemory::Fill::kOnes)
      : memory_(size * sizeof(T), fill), size_(size) {}
  explicit DeviceBuffer(const std::vector<T>& values) : DeviceBuffer(std::span<const T>(values)) {}
  explicit DeviceBuffer(std::span<const T> values) : DeviceBuffer(values.size()) {
    if (!values.empty()) std::memcpy(memory_.data(), values.data(), values.size_bytes());
  }

  T* data() const { return static_cast<T*>(memory_.data()); }
  std::size_t size() const { return size_; }
  T& operator[](std::size_t i) { return data()[i]; }
  const T& operator[](std::size_t i) const { return data()[i]; }
  T* begin() const { return data(); }
  T* end() const { return data() + size_; }
  std::vector<T> to_host() const { return std::vector<T>(begin(), end()); }

 private:
  DeviceMemory memory_;
  std::size_t size_;
};

}  // namespace simt
