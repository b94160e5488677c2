// ByteCursor: reads little-endian values from a span and cannot leave it. Every read either succeeds or throws
// Error(kInvalidFile) naming the file, the field and the offset; nothing is allocated from a length that the file claims.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "core/check.h"

namespace quire {

static_assert(std::endian::native == std::endian::little, "model files are little-endian and read in place");

class ByteCursor {
 public:
  // `file` is the name for messages; it and the bytes outlive the cursor.
  ByteCursor(std::span<const std::byte> bytes, std::string_view file) : bytes_(bytes), file_(file) {}

  std::size_t offset() const { return offset_; }
  std::size_t remaining() const { return bytes_.size() - offset_; }
  std::string_view file() const { return file_; }

  std::span<const std::byte> take(std::uint64_t count, std::string_view field) {
    if (count > remaining()) {
      fail(ErrorCode::kInvalidFile, "{}: {} at offset {} needs {} bytes, {} remain; is the file cut short?", file_, field,
           offset_, count, remaining());
    }
    const auto taken = bytes_.subspan(offset_, static_cast<std::size_t>(count));
    offset_ += taken.size();
    return taken;
  }

  template <typename T>
  T read(std::string_view field) {
    T value;
    std::memcpy(&value, take(sizeof(T), field).data(), sizeof(T));
    return value;
  }

  // A u64 that counts records of at least `min_bytes` each, so no more of them than the rest of the file can hold.
  std::uint64_t read_count(std::size_t min_bytes, std::uint64_t max, std::string_view field) {
    const auto count = read<std::uint64_t>(field);
    if (count > max) fail(ErrorCode::kInvalidFile, "{}: {} is {}, at most {} allowed", file_, field, count, max);
    if (count > remaining() / min_bytes) {
      fail(ErrorCode::kInvalidFile, "{}: {} is {}, more than the remaining {} bytes hold; is the file cut short?", file_, field,
           count, remaining());
    }
    return count;
  }

  // u64 length, then bytes.
  std::string_view read_string(std::uint64_t max_bytes, std::string_view field) {
    const auto length = read<std::uint64_t>(field);
    if (length > max_bytes) {
      fail(ErrorCode::kInvalidFile, "{}: {} has length {}, at most {} allowed", file_, field, length, max_bytes);
    }
    const auto text = take(length, field);
    return {reinterpret_cast<const char*>(text.data()), text.size()};
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t offset_ = 0;
  std::string_view file_;
};

}  // namespace quire
