// What tests ask of the played CUDA runtime beyond CUDA's own calls: how often the host waited, when to fail, and the queue that
// launches go through. The runtime itself: simt/cuda/cuda_runtime.h.
#pragma once

#include <cstdint>
#include <functional>

struct CUstream_st;

namespace simt {

// Runs `work` when its stream's turn comes; at once on the null stream.
void enqueue(CUstream_st* stream, std::function<void()> work);

struct RuntimeCounts {
  std::int64_t waits = 0;        // cudaStreamSynchronize
  std::int64_t uploads = 0;      // copies from host to device
  std::int64_t downloads = 0;    // copies from device to host
  std::int64_t launches = 0;     // kernels and library calls, of graphs too
  std::int64_t allocations = 0;  // cudaMalloc and cudaMallocHost
  std::int64_t graph_launches = 0;
};
RuntimeCounts& runtime_counts();

// The device from here on: `calls` more pieces of queued work run, the next one reports `message` as a device error at the wait
// and at everything after, as a sticky error does. Negative: never (the state at the start of a test).
void break_device_after(std::int64_t calls);
// The next `count`-th allocation on the device finds no memory. Negative: never.
void fail_allocation_after(std::int64_t count);
// Bytes that cudaMemGetInfo says are free.
void set_free_bytes(std::size_t bytes);

}  // namespace simt
