// SharedMemory: a block's. Dynamic bytes first, 1,024-byte aligned, then the static arrays in the order of their first use, with
// gaps of whole bank rows between them, so that bank numbers stay what they are. All bytes in use start as 0xFF; the gaps are
// poisoned under AddressSanitizer and else checked when the block ends.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace simt {

class SharedMemory {
 public:
  static constexpr std::size_t kCapacity = 256 * 1024;
  static constexpr std::size_t kDynamicAlignment = 1024;    // static arrays come first, and take multiples of this
  static constexpr std::size_t kWithoutAsking = 48 * 1024;  // of any block; of static arrays ptxas accepts no more

  SharedMemory();
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Forgets the block before.
  void prepare(std::size_t dynamic_bytes, std::size_t most_bytes);
  unsigned char* dynamic() const { return bytes_; }
  // The array of `key`, made at its first use in the block. Null when it does not fit.
  void* array(const void* key, std::size_t bytes, const char* name);

  bool owns(const void* address) const { return address >= bytes_ && address < bytes_ + kCapacity; }
  // Whether [address, address + bytes) lies in the dynamic bytes or in one array.
  bool in_use(const void* address, std::size_t bytes) const;
  std::size_t offset(const void* address) const {
    return static_cast<std::size_t>(static_cast<const unsigned char*>(address) - bytes_);
  }
  std::string describe(std::size_t offset) const;  // "scores + 12 bytes"
  bool gaps_intact() const;

 private:
  struct Range {
    const void* key;  // null: the dynamic bytes
    const char* name;
    std::size_t begin;
    std::size_t end;
  };

  void* add(const void* key, const char* name, std::size_t begin, std::size_t bytes);

  unsigned char* bytes_;
  std::vector<Range> ranges_;  // by address
  std::size_t static_bytes_ = 0;
  std::size_t most_bytes_ = 0;  // static and dynamic ones
};

}  // namespace simt
