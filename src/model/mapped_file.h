// MappedFile: a file's bytes, mapped read-only and shared. Owns the mapping, unmaps it at the end; knows nothing of formats.
// The length is that of the open descriptor. A file that another process shrinks while it is mapped raises SIGBUS on access, as
// with every mapped file: replace model files by renaming, never by truncating.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace quire {

class MappedFile {
 public:
  // Throws Error kNotFound if there is no such file, kIo if it cannot be opened or mapped.
  static std::shared_ptr<const MappedFile> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

// Gives back the memory of the pages wholly inside `bytes` of a mapped file, which is read again if they are touched again.
void give_back_pages(std::span<const std::byte> bytes);

// The whole of a small text file. Throws like MappedFile::open, and kInvalidFile if it is longer than `max_bytes`.
std::string read_text_file(const std::string& path, std::size_t max_bytes);

}  // namespace quire
