// The played CUDA runtime: work runs at the wait and not before, graphs keep their arguments, and what CUDA refuses is refused.
#include "simt/runtime.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "simt/cuda/cuda_runtime.h"

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

}  // namespace
