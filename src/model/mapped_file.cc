#include "model/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "core/check.h"
#include "core/math.h"

namespace quire {
namespace {

// The descriptor is needed only until the mapping stands.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

[[noreturn]] void fail_io(const std::string& path, const char* what, int error) {
  fail(error == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, "{}: cannot {}: {}", path, what,
       std::generic_category().message(error));
}

std::uintptr_t page_bytes() { return static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE)); }

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.fd() < 0) fail_io(path, "open", errno);
  struct stat status {};
  if (::fstat(file.fd(), &status) != 0) fail_io(path, "stat", errno);
  if (!S_ISREG(status.st_mode)) fail(ErrorCode::kInvalidArgument, "{}: not a regular file", path);
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return std::shared_ptr<const MappedFile>(new MappedFile({}));  // mmap refuses empty mappings
  void* const data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd(), 0);
  if (data == MAP_FAILED) fail_io(path, "map", errno);
  return std::shared_ptr<const MappedFile>(new MappedFile({static_cast<const std::byte*>(data), size}));
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void give_back_pages(std::span<const std::byte> bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
  const std::uintptr_t begin = round_up(address, page_bytes()), end = (address + bytes.size()) / page_bytes() * page_bytes();
  // Advice: nothing is lost if the system does not take it.
  if (begin < end) ::madvise(const_cast<std::byte*>(bytes.data()) + (begin - address), end - begin, MADV_DONTNEED);
}

std::string read_text_file(const std::string& path, std::size_t max_bytes) {
  const auto file = MappedFile::open(path);
  const auto bytes = file->bytes();
  if (bytes.size() > max_bytes) fail(ErrorCode::kInvalidFile, "{}: {} bytes, at most {} expected", path, bytes.size(), max_bytes);
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace quire
