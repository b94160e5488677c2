#include "backend/cuda/step_graph.h"

#include "backend/cuda/cuda_check.h"

namespace quire {

void StepGraphs::run(std::uint64_t key, cudaStream_t stream, const std::function<void()>& ops) {
  if (key == 0) return ops();
  if (graphs_.size() >= kMostGraphs && graphs_.find(key) == graphs_.end()) graphs_.clear();
  const auto [place, is_new] = graphs_.try_emplace(key);
  if (is_new) return ops();
  if (place->second == nullptr) place->second = record(stream, ops);
  cuda_check(cudaGraphLaunch(place->second.get(), stream), "cudaGraphLaunch");
}

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
  cuda_check(status, "cudaGraphInstantiate");
  return Graph(made);
}

}  // namespace quire
