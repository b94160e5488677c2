// What tests ask of the played CUDA runtime beyond CUDA's own calls: how often the host waited, what it never gave back, when to
// fail, and the queue that launches go through. The runtime itself: simt/cuda/cuda_runtime.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>

#include "simt/cuda/cuda_runtime.h"

namespace simt {

// Runs `work`, a kernel or a library's call, when its stream's turn comes; at once on the null stream.
cudaError_t enqueue(CUstream_st* stream, std::function<void()> work);

// What CUDA says to a launch before it looks at the arguments. `kernel`: its address.
cudaError_t check_launch(const cudaLaunchConfig_t& config, const void* kernel);
// Bytes of shared memory, dynamic and static ones together, that a block of `kernel` may have.
std::size_t shared_memory_limit(const void* kernel);
cudaError_t set_dynamic_memory_limit(const void* kernel, int bytes);
// Whether the device has code for kernels.
cudaError_t find_code();

struct RuntimeCounts {
  std::int64_t waits = 0;               // cudaStreamSynchronize
  std::int64_t uploads = 0;             // copies from host to device
  std::int64_t downloads = 0;           // copies from device to host
  std::int64_t launches = 0;            // kernels and library calls, of graphs too
  std::int64_t allocations = 0;         // cudaMalloc and cudaMallocHost
  std::int64_t failed_allocations = 0;  // by fail_allocation_after()
  std::int64_t graph_launches = 0;
  std::int64_t uploaded_graphs = 0;  // and not destroyed yet
  std::int64_t calls = 0;            // that a broken device answers with its error
};
RuntimeCounts& runtime_counts();

// Made and not destroyed yet.
struct RuntimeObjects {
  std::int64_t device_buffers = 0;
  std::int64_t pinned_buffers = 0;
  std::int64_t streams = 0;
  std::int64_t graphs = 0;   // executable ones too
  std::int64_t library = 0;  // of cuBLASLt
  bool operator==(const RuntimeObjects&) const = default;
};
RuntimeObjects& runtime_objects();
std::ostream& operator<<(std::ostream& out, const RuntimeObjects& objects);

// The device from here on: `count` more pieces of queued work run, the next one reports an illegal address at the wait and at
// everything after, as a sticky error does. Negative: never (the state at the start of a test).
void break_device_after(std::int64_t count);
// The same, broken by the call itself: `count` more of those that a broken device refuses are answered.
void break_device_at_call(std::int64_t count);
bool device_is_broken();
// After `count` more that succeed, one call that needs memory on the device, or pinned memory, finds none: a buffer, a recording
// when it is made, when it is uploaded, or else when it is first launched, a handle of cuBLASLt. Negative: never.
void fail_allocation_after(std::int64_t count);
bool allocation_fails();
// Recordings that the device has memory for at a time. Negative: any number.
void set_most_uploaded_graphs(std::int64_t count);
// Bytes that cudaMemGetInfo says are free from here on: buffers take theirs from them, one that is larger finds no memory.
void set_free_bytes(std::size_t bytes);

}  // namespace simt
