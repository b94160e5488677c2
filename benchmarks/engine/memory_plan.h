// MemoryPlan: what an engine will take of memory, from the header of its model's files: no weight is read, and it takes no memory
// to speak of, so a plan for a machine can be made on another. Of the CPU backend; on CUDA activations are half as wide.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/model_files.h"
#include "quire/engine.h"

namespace quire::bench {

struct WeightClass {
  DType dtype = DType::kF32;  // as the engine keeps them
  int num_tensors = 0;
  std::int64_t num_elements = 0;
  std::int64_t num_bytes = 0;
};

struct MemoryPlan {
  std::vector<WeightClass> weights;  // by type, most bytes first
  std::int64_t num_parameters = 0;
  std::int64_t weight_bytes = 0;      // in the engine's memory, or read where the file is mapped
  std::int64_t activation_bytes = 0;  // intermediates of a step of max_batched_tokens, logits included
  std::int64_t scratch_bytes = 0;     // of the kernels, at the longest context
  int num_kv_groups = 0;
  std::int64_t block_bytes = 0;          // of one KV block of one group
  std::int64_t token_bytes = 0;          // KV of a token while every layer keeps it
  std::int64_t distant_token_bytes = 0;  // of a token that only layers without a window still see
  std::int64_t fixed_bytes() const { return weight_bytes + activation_bytes + scratch_bytes; }
};

// Of `options` counts what the sizes above depend on; num_threads and max_context 0 are the machine's and the model's own.
// Throws Error.
MemoryPlan plan_memory(const ModelFiles& files, const EngineOptions& options);

// How much a pool of `kv_bytes` holds.
struct Capacity {
  std::int64_t num_blocks = 0;  // that hold tokens: without the reserved one
  std::int64_t num_tokens = 0;  // of contexts within every window
};
Capacity capacity(const MemoryPlan& plan, const EngineOptions& options, std::int64_t kv_bytes);
// Requests of so many tokens, prompt and answer together, that run side by side without sharing a prefix.
std::int64_t requests_that_fit(const ModelFiles& files, const EngineOptions& options, std::int64_t num_blocks, int tokens);

}  // namespace quire::bench
