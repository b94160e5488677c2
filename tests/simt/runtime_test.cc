// The played CUDA runtime: work runs at the wait and not before, graphs keep their arguments, and what CUDA refuses is refused:
// launches beyond a device's limits, copies that lie about their sides, handles that are gone.
#include "simt/runtime.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/cuda/launch.h"
#include "tests/support/expect_error.h"

namespace {

class Runtime : public ::testing::Test {
 protected:
  void SetUp() override {
    simt::break_device_after(-1);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&device_, 64), cudaSuccess);
  }
  void TearDown() override {
    simt::break_device_after(-1);
    EXPECT_EQ(cudaFree(device_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }
  int value() {
    int value = 0;
    std::memcpy(&value, device_, sizeof(value));
    return value;
  }

  cudaStream_t stream_ = nullptr;
  void* device_ = nullptr;
};

TEST_F(Runtime, CopiesWhenSomebodyWaits) {
  int source = 5;
  ASSERT_EQ(cudaMemcpyAsync(device_, &source, sizeof(source), cudaMemcpyHostToDevice, stream_), cudaSuccess);
  EXPECT_EQ(value(), -1);  // fresh memory
  source = 6;              // too early: the copy takes it
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(value(), 6);
}

TEST_F(Runtime, RefusesACopyOfTheWrongKind) {
  int host = 0;
  EXPECT_EQ(cudaMemcpyAsync(device_, &host, 4, cudaMemcpyDeviceToDevice, stream_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(device_, &host, 4, cudaMemcpyDeviceToHost, stream_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(&host, device_, 4, cudaMemcpyHostToDevice, stream_), cudaErrorInvalidValue);
  std::vector<char> large(65);
  EXPECT_EQ(cudaMemcpyAsync(device_, large.data(), 65, cudaMemcpyHostToDevice, stream_), cudaErrorInvalidValue);
}

TEST_F(Runtime, AGraphKeepsItsArguments) {
  int counter = 0;
  int added = 1;
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  simt::enqueue(stream_, [&counter, added] { counter += added; });
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorStreamCaptureUnsupported);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(counter, 0);  // capturing runs nothing
  added = 100;
  for (int i = 0; i < 2; ++i) ASSERT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(counter, 2);
  ASSERT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
}

TEST_F(Runtime, ABrokenDeviceStaysBroken) {
  simt::break_device_after(1);
  int ran = 0;
  for (int i = 0; i < 3; ++i) simt::enqueue(stream_, [&ran] { ++ran; });
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorIllegalAddress);
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
}

TEST_F(Runtime, FreesWhatItGaveAndNothingElse) {
  int host = 0;
  EXPECT_EQ(cudaFree(&host), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
}

TEST_F(Runtime, CountsWhatWasNotGivenBack) {
  const simt::RuntimeObjects before = simt::runtime_objects();
  void *memory = nullptr, *pinned = nullptr;
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 1), cudaSuccess);
  ASSERT_EQ(cudaMallocHost(&pinned, 1), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, 0), cudaSuccess);
  const simt::RuntimeObjects now = simt::runtime_objects();
  EXPECT_EQ(now.device_buffers - before.device_buffers, 1);
  EXPECT_EQ(now.pinned_buffers - before.pinned_buffers, 1);
  EXPECT_EQ(now.streams - before.streams, 1);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(simt::runtime_objects(), before);
}

TEST_F(Runtime, ADeviceBreaksAtACall) {
  simt::break_device_at_call(1);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorIllegalAddress);
  void* more = nullptr;
  EXPECT_EQ(cudaMalloc(&more, 1), cudaErrorIllegalAddress);
}

// ---- launches, made as the kernels' launchers make them

using quire::cuda::LaunchShape;

int num_blocks_run = 0;

__global__ void counting_kernel() {
  if (threadIdx.x + threadIdx.y + threadIdx.z == 0) ++num_blocks_run;
}
// Another for what is remembered by kernel.
template <int kBytes>
__global__ void kernel_with_static_array() {
  QUIRE_SHARED(array, char[kBytes]);
  array[threadIdx.x] = 0;
}

cudaError_t launch_raw(cudaStream_t stream, dim3 grid, dim3 block, std::size_t dynamic_bytes = 0) {
  const cudaLaunchConfig_t config{grid, block, dynamic_bytes, stream};
  return cudaLaunchKernelEx(&config, counting_kernel);
}

TEST_F(Runtime, RefusesAShapeThatNoDeviceTakes) {
  EXPECT_EQ(launch_raw(stream_, dim3(1), dim3(1024)), cudaSuccess);
  EXPECT_EQ(launch_raw(stream_, dim3(1), dim3(16, 1, 64)), cudaSuccess);
  EXPECT_EQ(launch_raw(stream_, dim3(1, 65535, 1), dim3(1)), cudaSuccess);
  num_blocks_run = 0;
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(num_blocks_run, 65537);
  const dim3 grids[] = {dim3(0), dim3(1, 0), dim3(1, 1, 0), dim3(0x80000000u), dim3(1, 65536), dim3(1, 1, 65536)};
  for (const dim3& grid : grids) {
    EXPECT_EQ(launch_raw(stream_, grid, dim3(32)), cudaErrorInvalidConfiguration) << grid.x << ' ' << grid.y << ' ' << grid.z;
  }
  const dim3 blocks[] = {dim3(0), dim3(1, 0), dim3(1, 1, 0), dim3(1025), dim3(1, 1025), dim3(1, 1, 65), dim3(32, 33)};
  for (const dim3& block : blocks) {
    EXPECT_EQ(launch_raw(stream_, dim3(1), block), cudaErrorInvalidConfiguration) << block.x << ' ' << block.y << ' ' << block.z;
  }
  num_blocks_run = 0;
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess) << "a refused launch leaves no trace";
  EXPECT_EQ(num_blocks_run, 0);
}

TEST_F(Runtime, RefusesSharedMemoryThatWasNotAskedFor) {
  constexpr std::size_t kFree = 48 * 1024, kMost = 99 * 1024;
  EXPECT_EQ(launch_raw(stream_, dim3(1), dim3(32), kFree), cudaSuccess);
  EXPECT_EQ(launch_raw(stream_, dim3(1), dim3(32), kFree + 1), cudaErrorInvalidValue);
  constexpr auto kAttribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
  EXPECT_EQ(cudaFuncSetAttribute(counting_kernel, kAttribute, kMost + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(counting_kernel, kAttribute, 100'000), cudaSuccess);
  EXPECT_EQ(launch_raw(stream_, dim3(1), dim3(32), 100'000), cudaSuccess);
  EXPECT_EQ(launch_raw(stream_, dim3(1), dim3(32), 100'001), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(counting_kernel, kAttribute, kMost), cudaSuccess);
  EXPECT_EQ(launch_raw(stream_, dim3(1), dim3(32), kMost), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
}

// Static arrays take their part of what a block has.
TEST_F(Runtime, CountsStaticArraysToo) {
  cudaLaunchConfig_t config{dim3(1), dim3(32), 40 * 1024, nullptr};
  EXPECT_EQ(cudaLaunchKernelEx(&config, kernel_with_static_array<8 * 1024>), cudaSuccess);
  EXPECT_THROW((void)cudaLaunchKernelEx(&config, kernel_with_static_array<8 * 1024 + 16>), simt::Error);
  // quire's own launch asks.
  EXPECT_NO_THROW(quire::cuda::launch(nullptr, kernel_with_static_array<8 * 1024 + 16>, {dim3(1), dim3(32), 40 * 1024}));
}

TEST_F(Runtime, RefusesAStreamThatIsGone) {
  cudaStream_t gone = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&gone, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(gone), cudaSuccess);
  int host = 0;
  EXPECT_EQ(launch_raw(gone, dim3(1), dim3(32)), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaMemcpyAsync(device_, &host, 4, cudaMemcpyHostToDevice, gone), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamSynchronize(gone), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamBeginCapture(gone, cudaStreamCaptureModeThreadLocal), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamDestroy(gone), cudaErrorInvalidResourceHandle);
  EXPECT_ERROR(quire::cuda::launch(gone, counting_kernel, {dim3(1), dim3(32)}), quire::ErrorCode::kDevice,
               "kernel launch: invalid resource handle (cudaErrorInvalidResourceHandle)");
}

TEST_F(Runtime, OurLaunchSaysWhatWasRefused) {
  const auto launch = [&](const LaunchShape& shape) { quire::cuda::launch(stream_, counting_kernel, shape); };
  EXPECT_ERROR(launch({dim3(1), dim3(1025)}), quire::ErrorCode::kDevice,
               "kernel launch: invalid configuration argument (cudaErrorInvalidConfiguration)");
  EXPECT_ERROR(launch({dim3(1), dim3(32), 200 * 1024}), quire::ErrorCode::kDevice,
               "cudaFuncSetAttribute: invalid argument (cudaErrorInvalidValue)");
  EXPECT_NO_THROW(launch({dim3(0), dim3(32)}));  // nothing to do is no launch
  EXPECT_ERROR(quire::cuda::grid_x(std::int64_t{1} << 31), quire::ErrorCode::kUnsupported, "number of blocks is 2147483648");
  EXPECT_EQ(quire::cuda::grid_x(0x7fffffff), 0x7fffffffu);
}

}  // namespace
