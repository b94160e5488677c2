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

// With its key, so that one that comes again and again in the place of others is not recorded each time. False: there is none.
bool StepGraphs::forget_oldest_graph() {
  auto oldest = graphs_.end();
  for (auto place = graphs_.begin(); place != graphs_.end(); ++place) {
    if (place->second.graph == nullptr) continue;
    if (oldest == graphs_.end() || place->second.last_use < oldest->second.last_use) oldest = place;
  }
  if (oldest == graphs_.end()) return false;
  graphs_.erase(oldest);
  return true;
}

StepGraphs::Captured StepGraphs::capture(cudaStream_t stream, const std::function<void()>& ops) {
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
  return Captured(captured);
}

// nullptr: the device has no memory for it. Uploaded here, for a launch of what is not uploaded takes the memory that it lacks
// then, in the middle of a step.
StepGraphs::Graph StepGraphs::upload(cudaGraph_t captured, cudaStream_t stream) {
  const auto found_memory = [](cudaError_t status, const char* call) {
    if (status != cudaErrorMemoryAllocation) {
      cuda_check(status, call);
      return true;
    }
    (void)cudaGetLastError();
    return false;
  };
  cudaGraphExec_t made = nullptr;
  if (!found_memory(cudaGraphInstantiate(&made, captured, 0), "cudaGraphInstantiate")) return nullptr;
  Graph graph(made);
  return found_memory(cudaGraphUpload(made, stream), "cudaGraphUpload") ? std::move(graph) : nullptr;
}

// nullptr: the device has no memory for it, not even in the place of all others. The KV pool may have taken all that there was.
StepGraphs::Graph StepGraphs::record(cudaStream_t stream, const std::function<void()>& ops) {
  const Captured captured = capture(stream, ops);
  Graph graph;
  do {
    graph = upload(captured.get(), stream);
  } while (graph == nullptr && forget_oldest_graph());
  return graph;
}

}  // namespace quire
