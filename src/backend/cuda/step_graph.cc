#include "backend/cuda/step_graph.h"

#include <algorithm>

#include "backend/cuda/cuda_check.h"

namespace quire {

void StepGraphs::run(const ReplayKey& key, cudaStream_t stream, const std::function<void()>& ops) {
  if (key.empty()) return ops();
  auto place = graphs_.find(key);
  const bool is_new = place == graphs_.end();
  if (is_new) {
    if (graphs_.size() >= most_graphs_) forget_oldest();
    place = graphs_.try_emplace(key).first;
  }
  Entry& entry = place->second;
  entry.last_use = ++num_uses_;
  if (is_new) return ops();
  if (entry.graph == nullptr && !entry.lacked_memory) {
    entry.graph = record(stream, ops);
    entry.lacked_memory = entry.graph == nullptr;
  }
  if (entry.graph == nullptr) return ops();
  cuda_check(cudaGraphLaunch(entry.graph.get(), stream), "cudaGraphLaunch");
}

void StepGraphs::forget_oldest() {
  const auto older = [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; };
  graphs_.erase(std::min_element(graphs_.begin(), graphs_.end(), older));
}

// nullptr: the device has no memory for it. The KV pool may have taken all that there was.
StepGraphs::Graph StepGraphs::record(cudaStream_t stream, const std::function<void()>& ops) {
  cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  cudaGraph_t captured = nullptr;
  try {
    ops();
  } catch (...) {
    (void)cudaStreamEndCapture(stream, &captured);
    if (captured != nullptr) (void)cudaGraphDestroy(captured);
    throw;
  }
  cuda_check(cudaStreamEndCapture(stream, &captured), "cudaStreamEndCapture");
  cudaGraphExec_t made = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&made, captured, 0);
  (void)cudaGraphDestroy(captured);
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return nullptr;
  }
  cuda_check(status, "cudaGraphInstantiate");
  return Graph(made);
}

}  // namespace quire
