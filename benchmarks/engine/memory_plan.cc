#include "benchmarks/engine/memory_plan.h"

#include <algorithm>

#include "backend/backend.h"
#include "core/check.h"
#include "core/math.h"
#include "core/parallel.h"
#include "engine/engine_options.h"
#include "kernels/cpu/kernels.h"
#include "model/activations.h"
#include "model/kv_pool.h"
#include "model/weights.h"

namespace quire::bench {
namespace {

void add_weights(const ModelFiles& files, MemoryPlan& plan) {
  const auto backend = create_backend({DeviceKind::kCpu, 0}, {.num_threads = 1});  // knows the form of each matrix
  for (const auto& [tensor, form] : plan_weights(files, *backend)) {
    const DType dtype = form.dtype;
    auto found =
        std::find_if(plan.weights.begin(), plan.weights.end(), [&](const WeightClass& weight) { return weight.dtype == dtype; });
    if (found == plan.weights.end()) found = plan.weights.insert(found, WeightClass{.dtype = dtype});
    ++found->num_tensors;
    found->num_elements += tensor->num_elements();
    found->num_bytes += form.num_bytes;
    plan.num_parameters += tensor->num_elements();
    plan.weight_bytes += form.num_bytes;
  }
  std::stable_sort(plan.weights.begin(), plan.weights.end(),
                   [](const WeightClass& a, const WeightClass& b) { return a.num_bytes > b.num_bytes; });
}

// The CPU backend keeps one piece of memory, as large as the op that needs most.
std::int64_t scratch_bytes(const ModelConfig& config, const EngineOptions& options) {
  constexpr int kMostActivationTerms = 2;
  const int threads = options.num_threads > 0 ? options.num_threads : ThreadPool::default_num_threads();
  const int context = options.max_context > 0 ? options.max_context : config.max_context;
  const int heads = config.num_heads * config.head_size;
  const int rows = options.max_batched_tokens;
  const std::size_t most =
      std::max({cpu::matmul_scratch_bytes(rows, config.hidden_size, kMostActivationTerms),
                cpu::matmul_scratch_bytes(rows, std::max(heads, config.mlp_size)), cpu::attention_scratch_bytes(context, threads),
                cpu::sample_scratch_bytes(config.vocab_size, threads)});
  return static_cast<std::int64_t>(most);
}

}  // namespace

MemoryPlan plan_memory(const ModelFiles& files, const EngineOptions& options) {
  const ModelConfig& config = files.config;
  MemoryPlan plan;
  add_weights(files, plan);
  plan.activation_bytes = Activations::num_bytes(DType::kF32, config, options.max_batched_tokens, max_logit_rows(config));
  plan.scratch_bytes = scratch_bytes(config, options);
  plan.block_bytes = KvPool::bytes_per_block(config, kv_dtype(options), options.block_size);
  const std::int64_t group_token_bytes = plan.block_bytes / options.block_size;
  for (const KvGroupLayout& group : kv_group_layouts(config)) {
    ++plan.num_kv_groups;
    plan.token_bytes += group_token_bytes;
    if (group.window == 0) plan.distant_token_bytes += group_token_bytes;
  }
  return plan;
}

Capacity capacity(const MemoryPlan& plan, const EngineOptions& options, std::int64_t kv_bytes) {
  Capacity capacity;
  capacity.num_blocks = std::max<std::int64_t>(kv_bytes / plan.block_bytes - 1, 0);
  capacity.num_tokens = capacity.num_blocks / plan.num_kv_groups * options.block_size;
  return capacity;
}

std::int64_t requests_that_fit(const ModelFiles& files, const EngineOptions& options, std::int64_t num_blocks, int tokens) {
  // The last token's KV is never computed.
  return num_blocks /
         KvPool::blocks_for_sequence(files.config, options.block_size, std::max(tokens - 1, 1), options.max_batched_tokens);
}

}  // namespace quire::bench
