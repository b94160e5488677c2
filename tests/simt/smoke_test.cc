#include <gtest/gtest.h>

#include "kernels/cuda/stream.h"
#include "simt/device_memory.h"
#include "simt/emulator.h"

namespace quire::cuda {

void row_sum(const float* x, float* sums, int rows, int columns, Stream stream);

namespace {

TEST(Smoke, RowSum) {
  for (const simt::Options& options : simt::all_schedules()) {
    SCOPED_TRACE(testing::Message() << options);
    const simt::ScopedOptions scope(options);
    simt::DeviceBuffer<float> x(3 * 300);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 300);
    simt::DeviceBuffer<float> sums(3);
    row_sum(x.data(), sums.data(), 3, 300, nullptr);
    for (float sum : sums) EXPECT_EQ(sum, 299.0f * 150);
  }
}

}  // namespace
}  // namespace quire::cuda
