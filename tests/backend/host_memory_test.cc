#include "backend/cpu/host_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <new>
#include <vector>

#include "quire/error.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

// A file system root of our own, removed at the end.
class FakeRoot {
 public:
  FakeRoot() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::path(::testing::TempDir()) / (std::string("quire_host_memory_") + test->name());
    fs::remove_all(root_);
  }
  ~FakeRoot() { fs::remove_all(root_); }
  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  std::size_t available() const { return available_host_bytes(root_); }

 private:
  fs::path root_;
};

constexpr const char* kMeminfo = "MemTotal:       4000 kB\nMemFree:         100 kB\nMemAvailable:   3000 kB\n";

TEST(AvailableHostBytes, IsMemAvailableWithoutGroups) {
  FakeRoot root;
  EXPECT_EQ(root.available(), 0u);
  root.write("proc/meminfo", kMeminfo);
  EXPECT_EQ(root.available(), 3000u * 1024);
  root.write("proc/self/cgroup", "0::/\n");
  EXPECT_EQ(root.available(), 3000u * 1024);
}

TEST(AvailableHostBytes, IsWhatTheTightestGroupLeaves) {
  FakeRoot root;
  root.write("proc/meminfo", kMeminfo);
  root.write("proc/self/cgroup", "12:cpu:/elsewhere\n0::/service/worker\n");
  root.write("sys/fs/cgroup/service/memory.max", "1000000\n");
  root.write("sys/fs/cgroup/service/memory.current", "600000\n");
  root.write("sys/fs/cgroup/service/worker/memory.max", "max\n");
  root.write("sys/fs/cgroup/service/worker/memory.current", "600000\n");
  EXPECT_EQ(root.available(), 400000u);
  root.write("sys/fs/cgroup/service/memory.stat", "anon 350000\nfile 250000\ninactive_file 50000\nactive_file 1\n");
  EXPECT_EQ(root.available(), 450000u);
  root.write("sys/fs/cgroup/service/worker/memory.max", "610000\n");
  EXPECT_EQ(root.available(), 10000u);
  root.write("sys/fs/cgroup/service/worker/memory.current", "620000\n");  // above its limit for a moment
  EXPECT_EQ(root.available(), 0u);
}

TEST(AvailableHostBytes, OfThisMachineIsSomething) { EXPECT_GT(available_host_bytes(), 0u); }

TEST(AllocateHostMemory, IsAlignedAndWritable) {
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{1000}, std::size_t{2} << 20, (std::size_t{5} << 20) + 3}) {
    DeviceBuffer buffer = allocate_host_memory(bytes);
    ASSERT_NE(buffer.data(), nullptr);
    EXPECT_EQ(buffer.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0u);
    std::memset(buffer.data(), 1, bytes);
    DeviceBuffer moved = std::move(buffer);
    EXPECT_EQ(buffer.data(), nullptr);
    EXPECT_EQ(moved.bytes(), bytes);
  }
}

TEST(AllocateHostMemory, TooMuchIsAnErrorThatNamesTheSize) {
  for (const std::size_t bytes : {std::size_t{1} << 62, std::numeric_limits<std::size_t>::max()}) {
    try {
      allocate_host_memory(bytes);
      FAIL() << bytes;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
      EXPECT_NE(std::string(error.what()).find(std::to_string(bytes)), std::string::npos) << error.what();
    }
  }
}

// Nine megabytes without a page yet.
class Untouched {
 public:
  static constexpr std::size_t kBytes = std::size_t{9} << 20;
  Untouched() : memory_(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    madvise(memory_, kBytes, MADV_NOHUGEPAGE);
  }
  ~Untouched() { munmap(memory_, kBytes); }
  Untouched(const Untouched&) = delete;
  Untouched& operator=(const Untouched&) = delete;

  char* at(std::size_t offset) const { return static_cast<char*>(memory_) + offset; }
  std::size_t resident_pages() const {
    std::vector<unsigned char> pages(kBytes / page_);
    mincore(memory_, kBytes, pages.data());
    return static_cast<std::size_t>(std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return (p & 1) != 0; }));
  }
  std::size_t page() const { return page_; }

 private:
  void* memory_;
  std::size_t page_ = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
};

TEST(PageList, BringsInWhatItHoldsAndChangesNothing) {
  const Untouched memory;
  if (madvise(memory.at(0), memory.page(), MADV_POPULATE_WRITE) != 0) GTEST_SKIP() << "a system that takes no such advice";
  *memory.at(0) = 7;
  PageList pages;
  pages.add(memory.at(0), 3 * memory.page() + 1, PageList::Access::kWrite);
  pages.add(memory.at(std::size_t{3} << 20), std::size_t{5} << 20, PageList::Access::kWrite);
  EXPECT_GE(pages.size(), 1 + 3) << "cut at the edges of huge pages";
  EXPECT_LE(pages.size(), 2 + 4);
  EXPECT_EQ(memory.resident_pages(), 1u);
  for (std::int64_t piece = 0; piece < pages.size(); ++piece) pages.bring_in(piece);
  EXPECT_EQ(memory.resident_pages(), 4 + (std::size_t{5} << 20) / memory.page());
  EXPECT_EQ(*memory.at(0), 7);
}

TEST(PageList, JoinsWhatLiesTogether) {
  const Untouched memory;
  PageList pages;
  for (std::size_t i = 0; i < 3000; ++i) {  // two rows of small stretches, one to read and one to write
    pages.add(memory.at(i * 1000), 900, PageList::Access::kRead);
    pages.add(memory.at((std::size_t{5} << 20) + i * 1000), 1000, PageList::Access::kWrite);
  }
  EXPECT_LE(pages.size(), 3 + 3);
  pages.add(memory.at(0), 1, PageList::Access::kRead);  // before the last
  const std::int64_t size = pages.size();
  pages.add(memory.at(2 * memory.page()), 1, PageList::Access::kRead);  // a page between
  EXPECT_EQ(pages.size(), size + 1);
  pages.add(memory.at(0), 0, PageList::Access::kWrite);
  EXPECT_EQ(pages.size(), size + 1);
}

}  // namespace
}  // namespace quire
