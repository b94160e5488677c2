#include "backend/cpu/host_memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <limits>

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

}  // namespace
}  // namespace quire
