#include "simt/runtime.h"

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "simt/cuda/cuda_runtime.h"
#include "simt/device_memory.h"

using Work = std::function<void()>;

struct CUstream_st {
  std::vector<Work> queue;
  bool capturing = false;
};
struct CUevent_st {
  std::chrono::steady_clock::time_point time;
};
struct CUgraph_st {
  std::vector<Work> nodes;
};
struct CUgraphExec_st {
  std::vector<Work> nodes;
};

namespace {

struct Runtime {
  simt::RuntimeCounts counts;
  std::int64_t work_left = -1;
  std::int64_t allocations_left = -1;
  std::size_t free_bytes = std::size_t{1} << 30;
  bool broken = false;  // sticky
  std::unordered_map<void*, std::unique_ptr<simt::DeviceMemory>> memory;
  std::set<CUstream_st*> streams;
};

Runtime& runtime() {
  static Runtime instance;
  return instance;
}

cudaError_t run(Work& work) {
  Runtime& r = runtime();
  if (r.work_left == 0) r.broken = true;
  if (r.broken) return cudaErrorIllegalAddress;
  if (r.work_left > 0) --r.work_left;
  work();
  return cudaSuccess;
}

cudaError_t drain(CUstream_st& stream) {
  const std::vector<Work> queue = std::exchange(stream.queue, {});
  for (Work work : queue) {
    if (const cudaError_t error = run(work); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

bool allocation_fails() {
  Runtime& r = runtime();
  ++r.counts.allocations;
  return r.allocations_left >= 0 && r.allocations_left-- == 0;
}

}  // namespace

namespace simt {

void enqueue(CUstream_st* stream, Work work) {
  Runtime& r = runtime();
  const auto counted = [&r, work = std::move(work)] {
    ++r.counts.launches;
    work();
  };
  if (stream != nullptr) {
    stream->queue.emplace_back(counted);
  } else {
    counted();
  }
}

RuntimeCounts& runtime_counts() { return runtime().counts; }

void break_device_after(std::int64_t calls) {
  runtime().work_left = calls;
  runtime().broken = false;
}

void fail_allocation_after(std::int64_t count) { runtime().allocations_left = count; }

void set_free_bytes(std::size_t bytes) { runtime().free_bytes = bytes; }

}  // namespace simt

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device != 0) return cudaErrorInvalidDevice;
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = 4;  // few, so that small tests fill the device and work is split
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 8;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      return cudaSuccess;
  }
  return cudaErrorInvalidValue;
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = runtime().free_bytes;
  *total = std::size_t{1} << 34;
  return cudaSuccess;
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
  }
  return "cudaErrorUnknown";
}

const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

cudaError_t cudaGetLastError() { return runtime().broken ? cudaErrorIllegalAddress : cudaSuccess; }

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  for (const CUstream_st* stream : runtime().streams) {
    if (stream->capturing) return cudaErrorStreamCaptureUnsupported;
  }
  if (allocation_fails()) return cudaErrorMemoryAllocation;
  auto memory = std::make_unique<simt::DeviceMemory>(bytes);
  *pointer = memory->data();
  runtime().memory.emplace(*pointer, std::move(memory));
  return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  // As on a device, where it waits for what is under way.
  for (CUstream_st* stream : runtime().streams) {
    if (stream->capturing) return cudaErrorStreamCaptureUnsupported;
    (void)drain(*stream);
  }
  return pointer == nullptr || runtime().memory.erase(pointer) == 1 ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaMallocHost(void** pointer, std::size_t bytes) {
  if (allocation_fails()) return cudaErrorMemoryAllocation;
  *pointer = std::malloc(bytes);
  return *pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t cudaFreeHost(void* pointer) {
  std::free(pointer);
  return cudaSuccess;
}

// A kind that lies about either side is refused: on a device it would be a fault.
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  const bool to_device = simt::in_device_memory(to, bytes);
  const bool from_device = simt::in_device_memory(from, bytes);
  if (to_device != (kind != cudaMemcpyDeviceToHost) || from_device != (kind != cudaMemcpyHostToDevice))
    return cudaErrorInvalidValue;
  Runtime& r = runtime();
  if (kind == cudaMemcpyHostToDevice) ++r.counts.uploads;
  if (kind == cudaMemcpyDeviceToHost) ++r.counts.downloads;
  Work copy = [to, from, bytes] { std::memmove(to, from, bytes); };
  if (stream == nullptr) return run(copy);
  stream->queue.push_back(std::move(copy));
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  runtime().streams.insert(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  runtime().streams.erase(stream);
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream->capturing) return cudaErrorStreamCaptureUnsupported;
  ++runtime().counts.waits;
  return runtime().broken ? cudaErrorIllegalAddress : drain(*stream);
}

cudaError_t cudaDeviceSynchronize() { return cudaGetLastError(); }

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  stream->queue.emplace_back([event] { event->time = std::chrono::steady_clock::now(); });
  return cudaSuccess;
}

// Of the emulator: it says nothing about a GPU.
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  *milliseconds = std::chrono::duration<float, std::milli>(end->time - begin->time).count();
  return cudaSuccess;
}

// What was queued before the capture is no part of the graph: it runs first.
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const cudaError_t error = drain(*stream);
  stream->capturing = error == cudaSuccess;
  return error;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (!stream->capturing) return cudaErrorInvalidValue;
  stream->capturing = false;
  *graph = new CUgraph_st{std::exchange(stream->queue, {})};
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new CUgraphExec_st{graph->nodes};
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  ++runtime().counts.graph_launches;
  stream->queue.insert(stream->queue.end(), exec->nodes.begin(), exec->nodes.end());
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
