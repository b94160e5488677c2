// StepGraphs: launches of a step recorded as CUDA graphs and replayed, so that a step of some hundred small kernels costs one
// call. Owns the graphs, and drops those used longest ago, sooner where the device has no memory for one more: a step that cannot
// be recorded runs as it is. What a key means is the caller's business (Backend::run); keys are compared word by word, so that no
// recording ever stands in for another step.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "backend/backend.h"

namespace quire {

class StepGraphs {
 public:
  // At most so many keys are known: a graph of a large model takes some megabytes of device memory.
  static constexpr std::size_t kMostGraphs = 128;

  explicit StepGraphs(std::size_t most_graphs = kMostGraphs) : most_graphs_(most_graphs) {}

  // The first call with a key runs `ops` as they are, the second records them and takes the recording's memory on the device, and
  // from then on the recording runs. An empty key, or a device without memory for even one recording: as they are. If `ops`
  // throws, nothing is recorded.
  void run(const ReplayKey& key, cudaStream_t stream, const std::function<void()>& ops);

 private:
  struct Destroy {
    void operator()(cudaGraphExec_t graph) const { (void)cudaGraphExecDestroy(graph); }
  };
  using Graph = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, Destroy>;
  struct DestroyCaptured {
    void operator()(cudaGraph_t graph) const { (void)cudaGraphDestroy(graph); }
  };
  using Captured = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, DestroyCaptured>;
  struct Entry {
    Graph graph;  // nullptr: seen once
    bool lacked_memory = false;
    std::uint64_t last_use = 0;
  };

  static Captured capture(cudaStream_t stream, const std::function<void()>& ops);
  static Graph upload(cudaGraph_t captured, cudaStream_t stream);
  Graph record(cudaStream_t stream, const std::function<void()>& ops);
  void forget_oldest();
  bool forget_oldest_graph();

  std::size_t most_graphs_;
  std::uint64_t num_uses_ = 0;
  std::map<ReplayKey, Entry> graphs_;
};

}  // namespace quire
