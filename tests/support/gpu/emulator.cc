// simt/emulator.h on a GPU: there is one schedule, the device's, and nothing is counted.
#include "simt/emulator.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <ostream>

namespace simt {
namespace {

// Launches wait for their end, so that tests may look at memory right after; all tests are skipped where there is no GPU.
class GpuEnvironment : public ::testing::Environment {
 public:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no GPU";
  }
};

[[maybe_unused]] const bool prepared = [] {
  setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  ::testing::AddGlobalTestEnvironment(new GpuEnvironment);
  return true;
}();

}  // namespace

std::ostream& operator<<(std::ostream& out, const Options&) { return out << "the device's schedule"; }

std::span<const Options> all_schedules() {
  static const Options only;
  return {&only, 1};
}

const Options& options() { return all_schedules().front(); }

ScopedOptions::ScopedOptions(const Options&) {}
ScopedOptions::~ScopedOptions() = default;

bool has_hooks() { return false; }

Statistics take_statistics() { return {}; }

ReadWatch::ReadWatch(const void* address, std::size_t bytes)
    : begin_(static_cast<const unsigned char*>(address)), num_reads_(bytes) {}
ReadWatch::~ReadWatch() = default;
void ReadWatch::note(const void*, std::size_t) {}

}  // namespace simt
