// StepGraphs: launches of a step recorded as CUDA graphs and replayed, so that a step of some hundred small kernels costs one
// call. Owns the graphs. The keys' meaning is the caller's (Backend::run).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>

namespace quire {

class StepGraphs {
 public:
  // The first call with a key runs `ops` as they are, the second records them, and from then on the recording runs. Key 0: always
  // as they are. If `ops` throws, nothing is recorded.
  void run(std::uint64_t key, cudaStream_t stream, const std::function<void()>& ops);

 private:
  // Beyond this many keys all recordings are dropped: a graph of a large model takes some megabytes of device memory.
  static constexpr std::size_t kMostGraphs = 128;

  struct Destroy {
    void operator()(cudaGraphExec_t graph) const { (void)cudaGraphExecDestroy(graph); }
  };
  using Graph = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, Destroy>;
  static Graph record(cudaStream_t stream, const std::function<void()>& ops);

  std::unordered_map<std::uint64_t, Graph> graphs_;  // nullptr: seen once
};

}  // namespace quire
