#include "simt/runtime.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <ostream>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "simt/device_memory.h"
#include "simt/devices.h"
#include "simt/shared_memory.h"

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
  bool uploaded = false;
};

namespace {

struct Runtime {
  simt::RuntimeCounts counts;
  simt::RuntimeObjects objects;
  std::int64_t work_left = -1;
  std::int64_t calls_left = -1;
  std::int64_t allocations_left = -1;
  std::int64_t most_uploaded_graphs = -1;
  std::size_t free_bytes = std::size_t{1} << 30;
  int num_devices = 1;
  simt::DeviceModel model;
  bool broken = false;  // sticky
  std::unordered_map<void*, std::unique_ptr<simt::DeviceMemory>> memory;
  std::unique_ptr<simt::DeviceMemory> spare;  // the last large buffer that was freed: new pages cost more than a small test
  std::set<CUstream_st*> streams;
  std::unordered_map<const void*, std::size_t> dynamic_limits;  // of kernels that asked
};

Runtime& runtime() {
  static Runtime instance;
  return instance;
}

// Every call that a broken device refuses begins with this.
cudaError_t answer() {
  Runtime& r = runtime();
  ++r.counts.calls;
  if (r.calls_left == 0) r.broken = true;
  if (r.calls_left > 0) --r.calls_left;
  return r.broken ? cudaErrorIllegalAddress : cudaSuccess;
}

cudaError_t answer(CUstream_st* stream) {
  if (const cudaError_t error = answer(); error != cudaSuccess) return error;
  return stream == nullptr || runtime().streams.contains(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle;
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

bool is_capturing() {
  for (const CUstream_st* stream : runtime().streams) {
    if (stream->capturing) return true;
  }
  return false;
}

bool is_within(dim3 size, dim3 most) {
  const auto fits = [](unsigned n, unsigned limit) { return n >= 1 && n <= limit; };
  return fits(size.x, most.x) && fits(size.y, most.y) && fits(size.z, most.z);
}

}  // namespace

namespace simt {

cudaError_t enqueue(CUstream_st* stream, Work work) {
  if (const cudaError_t error = answer(stream); error != cudaSuccess) return error;
  Runtime& r = runtime();
  Work counted = [&r, work = std::move(work)] {
    ++r.counts.launches;
    work();
  };
  if (stream == nullptr) return run(counted);
  stream->queue.push_back(std::move(counted));
  return cudaSuccess;
}

cudaError_t check_launch(const cudaLaunchConfig_t& config, const void* kernel) {
  constexpr unsigned kMostThreads = 1024;
  if (!is_within(config.gridDim, dim3(0x7fffffff, 65535, 65535))) return cudaErrorInvalidConfiguration;
  if (!is_within(config.blockDim, dim3(kMostThreads, kMostThreads, 64))) return cudaErrorInvalidConfiguration;
  if (config.blockDim.x * config.blockDim.y * config.blockDim.z > kMostThreads) return cudaErrorInvalidConfiguration;
  if (runtime().model.code != cudaSuccess) return runtime().model.code;
  const auto asked = runtime().dynamic_limits.find(kernel);
  const std::size_t most = asked != runtime().dynamic_limits.end() ? asked->second : SharedMemory::kWithoutAsking;
  return config.dynamicSmemBytes <= most ? cudaSuccess : cudaErrorInvalidValue;
}

std::size_t shared_memory_limit(const void* kernel) {
  return runtime().dynamic_limits.contains(kernel) ? runtime().model.block_shared_bytes : SharedMemory::kWithoutAsking;
}

cudaError_t set_dynamic_memory_limit(const void* kernel, int bytes) {
  if (bytes < 0 || static_cast<std::size_t>(bytes) > runtime().model.block_shared_bytes) return cudaErrorInvalidValue;
  runtime().dynamic_limits[kernel] = static_cast<std::size_t>(bytes);
  return answer();
}

cudaError_t find_code() {
  if (const cudaError_t error = answer(); error != cudaSuccess) return error;
  return runtime().model.code;
}

RuntimeCounts& runtime_counts() { return runtime().counts; }
RuntimeObjects& runtime_objects() { return runtime().objects; }

std::ostream& operator<<(std::ostream& out, const RuntimeObjects& objects) {
  return out << objects.device_buffers << " device buffers, " << objects.pinned_buffers << " pinned buffers, " << objects.streams
             << " streams, " << objects.graphs << " graphs, " << objects.library << " objects of cuBLASLt";
}

void break_device_after(std::int64_t count) {
  runtime().work_left = count;
  runtime().calls_left = -1;
  runtime().broken = false;
}

void break_device_at_call(std::int64_t count) {
  break_device_after(-1);
  runtime().calls_left = count;
}

bool device_is_broken() { return answer() != cudaSuccess; }

void fail_allocation_after(std::int64_t count) { runtime().allocations_left = count; }

bool allocation_fails() {
  Runtime& r = runtime();
  if (r.allocations_left < 0 || r.allocations_left-- > 0) return false;
  ++r.counts.failed_allocations;
  return true;
}

void set_most_uploaded_graphs(std::int64_t count) { runtime().most_uploaded_graphs = count; }

void set_num_devices(int count) { runtime().num_devices = count; }
void set_device_model(const DeviceModel& model) { runtime().model = model; }
void set_free_bytes(std::size_t bytes) { runtime().free_bytes = bytes; }

}  // namespace simt

// ---- device

cudaError_t cudaGetDeviceCount(int* count) {
  *count = runtime().num_devices;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  return device >= 0 && device < runtime().num_devices ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (cudaSetDevice(device) != cudaSuccess) return cudaErrorInvalidDevice;
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = 4;  // few, so that small tests fill the device and work is split
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = runtime().model.major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = runtime().model.minor;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(runtime().model.block_shared_bytes);
      return cudaSuccess;
  }
  return cudaErrorInvalidValue;
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = runtime().free_bytes;
  *total = std::size_t{1} << 34;
  return answer();
}

namespace {

struct ErrorWords {
  cudaError_t error;
  const char *name, *text;
};
constexpr ErrorWords kErrorWords[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidKernelImage, "cudaErrorInvalidKernelImage", "device kernel image is invalid"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
    {cudaErrorJitCompilerNotFound, "cudaErrorJitCompilerNotFound", "PTX JIT compiler library not found"},
    {cudaErrorUnsupportedPtxVersion, "cudaErrorUnsupportedPtxVersion",
     "the provided PTX was compiled with an unsupported toolchain."},
    {cudaErrorJitCompilationDisabled, "cudaErrorJitCompilationDisabled", "PTX JIT compilation was disabled"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
};

ErrorWords words_of(cudaError_t error) {
  for (const ErrorWords& words : kErrorWords) {
    if (words.error == error) return words;
  }
  return {error, "cudaErrorUnknown", "unknown error"};
}

}  // namespace

const char* cudaGetErrorName(cudaError_t error) { return words_of(error).name; }
const char* cudaGetErrorString(cudaError_t error) { return words_of(error).text; }

cudaError_t cudaGetLastError() { return runtime().broken ? cudaErrorIllegalAddress : cudaSuccess; }

// ---- memory

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  if (is_capturing()) return cudaErrorStreamCaptureUnsupported;
  if (const cudaError_t error = answer(); error != cudaSuccess) return error;
  Runtime& r = runtime();
  ++r.counts.allocations;
  if (bytes > r.free_bytes || simt::allocation_fails()) return cudaErrorMemoryAllocation;
  std::unique_ptr<simt::DeviceMemory> memory;
  if (r.spare != nullptr && r.spare->bytes() == bytes) {
    memory = std::move(r.spare);
    std::memset(memory->data(), 0xFF, bytes);
  } else {
    memory = std::make_unique<simt::DeviceMemory>(bytes);
  }
  *pointer = memory->data();
  r.memory.emplace(*pointer, std::move(memory));
  r.free_bytes -= bytes;
  ++r.objects.device_buffers;
  return cudaSuccess;
}

// Of a broken device too: what it gave is gone with the context, and so it is here.
cudaError_t cudaFree(void* pointer) {
  // As on a device, where it waits for what is under way.
  for (CUstream_st* stream : runtime().streams) {
    if (stream->capturing) return cudaErrorStreamCaptureUnsupported;
    (void)drain(*stream);
  }
  if (pointer == nullptr) return cudaSuccess;
  const auto found = runtime().memory.find(pointer);
  if (found == runtime().memory.end()) return cudaErrorInvalidValue;
  constexpr std::size_t kLarge = std::size_t{32} << 20;
  runtime().free_bytes += found->second->bytes();
  if (found->second->bytes() >= kLarge) runtime().spare = std::move(found->second);
  runtime().memory.erase(found);
  --runtime().objects.device_buffers;
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** pointer, std::size_t bytes) {
  if (const cudaError_t error = answer(); error != cudaSuccess) return error;
  ++runtime().counts.allocations;
  *pointer = simt::allocation_fails() ? nullptr : std::malloc(bytes);
  if (*pointer == nullptr) return cudaErrorMemoryAllocation;
  ++runtime().objects.pinned_buffers;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* pointer) {
  if (pointer != nullptr) --runtime().objects.pinned_buffers;
  std::free(pointer);
  return cudaSuccess;
}

// A kind that lies about either side is refused: on a device it would be a fault.
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (const cudaError_t error = answer(stream); error != cudaSuccess) return error;
  if (bytes == 0) return cudaSuccess;
  const bool to_device = simt::in_device_memory(to, bytes);
  const bool from_device = simt::in_device_memory(from, bytes);
  if (kind == cudaMemcpyDefault) {
    kind = !to_device ? cudaMemcpyDeviceToHost : from_device ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice;
  } else if (to_device != (kind != cudaMemcpyDeviceToHost) || from_device != (kind != cudaMemcpyHostToDevice)) {
    return cudaErrorInvalidValue;
  }
  Runtime& r = runtime();
  if (kind == cudaMemcpyHostToDevice) ++r.counts.uploads;
  if (kind == cudaMemcpyDeviceToHost) ++r.counts.downloads;
  Work copy = [to, from, bytes] { std::memmove(to, from, bytes); };
  if (stream == nullptr) return run(copy);
  stream->queue.push_back(std::move(copy));
  return cudaSuccess;
}

// ---- streams and events

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  if (const cudaError_t error = answer(); error != cudaSuccess) return error;
  *stream = new CUstream_st;
  runtime().streams.insert(*stream);
  ++runtime().objects.streams;
  return cudaSuccess;
}

// What is queued still runs, as on a device.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (!runtime().streams.contains(stream)) return cudaErrorInvalidResourceHandle;
  (void)drain(*stream);
  runtime().streams.erase(stream);
  delete stream;
  --runtime().objects.streams;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const cudaError_t error = answer(stream); error != cudaSuccess) return error;
  if (stream == nullptr) return cudaSuccess;  // its work has run
  if (stream->capturing) return cudaErrorStreamCaptureUnsupported;
  ++runtime().counts.waits;
  return drain(*stream);
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

// ---- graphs

// What was queued before the capture is no part of the graph: it runs first.
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (const cudaError_t error = answer(stream); error != cudaSuccess) return error;
  const cudaError_t error = drain(*stream);
  stream->capturing = error == cudaSuccess;
  return error;
}

// Ends the capture even of a broken device, which gives no graph.
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (!runtime().streams.contains(stream)) return cudaErrorInvalidResourceHandle;
  if (!std::exchange(stream->capturing, false)) return cudaErrorInvalidValue;
  std::vector<Work> nodes = std::exchange(stream->queue, {});
  if (const cudaError_t error = answer(); error != cudaSuccess) return error;
  *graph = new CUgraph_st{std::move(nodes)};
  ++runtime().objects.graphs;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  if (const cudaError_t error = answer(); error != cudaSuccess) return error;
  if (simt::allocation_fails()) return cudaErrorMemoryAllocation;
  *exec = new CUgraphExec_st{graph->nodes};
  ++runtime().objects.graphs;
  return cudaSuccess;
}

namespace {

// Takes the memory on the device, once.
cudaError_t take_graph_memory(cudaGraphExec_t exec) {
  if (exec->uploaded) return cudaSuccess;
  Runtime& r = runtime();
  const bool is_full = r.most_uploaded_graphs >= 0 && r.counts.uploaded_graphs >= r.most_uploaded_graphs;
  if (is_full || simt::allocation_fails()) return cudaErrorMemoryAllocation;
  exec->uploaded = true;
  ++r.counts.uploaded_graphs;
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
  if (const cudaError_t error = answer(stream); error != cudaSuccess) return error;
  return take_graph_memory(exec);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (const cudaError_t error = answer(stream); error != cudaSuccess) return error;
  if (const cudaError_t error = take_graph_memory(exec); error != cudaSuccess) return error;
  ++runtime().counts.graph_launches;
  stream->queue.insert(stream->queue.end(), exec->nodes.begin(), exec->nodes.end());
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  --runtime().objects.graphs;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  if (exec->uploaded) --runtime().counts.uploaded_graphs;
  delete exec;
  --runtime().objects.graphs;
  return cudaSuccess;
}
