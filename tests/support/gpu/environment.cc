// Part of every test whose kernels run on a GPU: launches wait for their end, so that a test may look at memory right after, and
// without a GPU every test is skipped.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

namespace {

class GpuEnvironment : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo&) override {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess && count > 0) return;
    std::puts("[  SKIPPED ] no GPU");
    std::exit(0);
  }
};

[[maybe_unused]] const bool prepared = [] {
  setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  ::testing::UnitTest::GetInstance()->listeners().Append(new GpuEnvironment);
  return true;
}();

}  // namespace
