// Making an engine: options checked and completed, then every part built in order.
#include <algorithm>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>

#include "core/check.h"
#include "core/math.h"
#include "core/parallel.h"
#include "engine/engine_impl.h"
#include "engine/engine_options.h"

namespace quire {

DType kv_dtype(const EngineOptions& options) {
  switch (options.kv_type) {
    case KvType::kAuto:
      return options.device.kind == DeviceKind::kCpu ? DType::kF16 : DType::kBF16;
    case KvType::kF16:
      return DType::kF16;
    case KvType::kBF16:
      return DType::kBF16;
    case KvType::kF32:
      return DType::kF32;
  }
  fail(ErrorCode::kInvalidArgument, "EngineOptions::kv_type is {}, no KvType", static_cast<int>(options.kv_type));
}

int max_logit_rows(const ModelConfig& config) {
  constexpr std::int64_t kMostBytes = std::int64_t{64} << 20;
  constexpr std::int64_t kMostRows = 64;
  return static_cast<int>(std::clamp<std::int64_t>(kMostBytes / (std::int64_t{config.vocab_size} * 4), 1, kMostRows));
}

namespace {

constexpr std::int64_t kLeastKvBytes = std::int64_t{256} << 20;
constexpr int kMostBatchedTokens = 1 << 16;
constexpr int kMostRunning = 1 << 16;

void check_option(const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high) {
    fail(ErrorCode::kInvalidArgument, "EngineOptions::{} is {}, outside [{}, {}]", name, value, low, high);
  }
}

std::int64_t checked_bytes(std::int64_t num_blocks, std::int64_t block_bytes, const char* source) {
  const std::optional<std::int64_t> bytes = checked_mul(num_blocks, block_bytes);
  if (!bytes) {
    fail(ErrorCode::kInvalidArgument, "EngineOptions::{}: {} KV blocks of {} bytes are more than can be addressed", source,
         num_blocks, block_bytes);
  }
  return *bytes;
}

// What kv_cache_bytes 0 stands for.
std::int64_t default_kv_bytes(const EngineOptions& options, const ModelConfig& config, const Backend& backend,
                              std::int64_t block_bytes) {
  const std::int64_t blocks =
      1 + KvPool::blocks_for_sequence(config, options.block_size, options.max_context, options.max_batched_tokens);
  const auto half_free = static_cast<std::int64_t>(backend.free_bytes() / 2);
  return std::min(std::max(checked_bytes(blocks, block_bytes, "max_context"), kLeastKvBytes), half_free);
}

// Sets num_blocks and kv_cache_bytes, each from the other or from what there is now. Returns num_blocks. Blocks include the
// reserved block 0.
std::int64_t choose_pool_size(EngineOptions& options, const ModelConfig& config, const Backend& backend) {
  const std::int64_t block_bytes = KvPool::bytes_per_block(config, kv_dtype(options), options.block_size);
  const std::int64_t least = 1 + static_cast<std::int64_t>(kv_group_layouts(config).size());
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (options.num_blocks > 0) {
    check_option("num_blocks", options.num_blocks, least, kMost);
  } else {
    const bool is_given = options.kv_cache_bytes > 0;
    const std::int64_t bytes = is_given ? options.kv_cache_bytes : default_kv_bytes(options, config, backend, block_bytes);
    const std::int64_t least_bytes = checked_bytes(least, block_bytes, "block_size");
    if (bytes < least_bytes) {
      fail(is_given ? ErrorCode::kInvalidArgument : ErrorCode::kOutOfMemory,
           "EngineOptions::kv_cache_bytes is {}{}, less than the {} bytes that this model needs at least: {} blocks of {} bytes",
           bytes, is_given ? "" : " (half of the free memory)", least_bytes, least, block_bytes);
    }
    options.num_blocks = bytes / block_bytes;
    if (options.num_blocks > kMost) {
      fail(ErrorCode::kInvalidArgument, "EngineOptions::kv_cache_bytes is {}, more than {} blocks of {} bytes", bytes, kMost,
           block_bytes);
    }
  }
  options.kv_cache_bytes = checked_bytes(options.num_blocks, block_bytes, "num_blocks");
  return options.num_blocks;
}

// What can be said without the model: a wrong option is refused before a file of gigabytes is read.
void check_options(const EngineOptions& options) {
  constexpr int kBlockSizes[] = {8, 16, 32, 64, 128, 256};
  if (std::find(std::begin(kBlockSizes), std::end(kBlockSizes), options.block_size) == std::end(kBlockSizes)) {
    fail(ErrorCode::kInvalidArgument, "EngineOptions::block_size is {}, none of 8, 16, 32, 64, 128, 256", options.block_size);
  }
  check_option("num_threads", options.num_threads, 0, 1024);
  check_option("max_context", options.max_context, 0, std::numeric_limits<int>::max());
  check_option("max_batched_tokens", options.max_batched_tokens, 1, kMostBatchedTokens);
  check_option("max_step_ms", options.max_step_ms, 0, 3'600'000);
  check_option("max_running", options.max_running, 1, kMostRunning);
  check_option("kv_cache_bytes", options.kv_cache_bytes, 0, std::int64_t{1} << 60);
  check_option("num_blocks", options.num_blocks, 0, std::numeric_limits<std::int32_t>::max());
  kv_dtype(options);
}

// All but the size of the KV pool.
EngineOptions complete(EngineOptions options, const ModelConfig& config) {
  check_option("max_context", options.max_context, 0, config.max_context);
  if (options.max_context == 0) options.max_context = config.max_context;
  if (options.num_threads == 0) options.num_threads = ThreadPool::default_num_threads();
  return options;
}

// `given`, if there is one.
std::unique_ptr<Backend> make_backend(const EngineOptions& options, std::unique_ptr<Backend> given) {
  check_options(options);
  if (given != nullptr) return given;
  return create_backend(
      options.device,
      {.num_threads = options.num_threads, .activation_dtype = kv_dtype(options), .deterministic = options.deterministic});
}

SchedulerOptions scheduler_options(const EngineOptions& options) {
  SchedulerOptions out;
  out.num_blocks = static_cast<int>(options.num_blocks);
  out.block_size = options.block_size;
  out.max_batched_tokens = options.max_batched_tokens;
  out.max_running = options.max_running;
  out.max_context = options.max_context;
  out.prefix_cache = options.prefix_cache;
  return out;
}

std::optional<StepPacer> pacer(const EngineOptions& options) {
  if (options.max_step_ms == 0) return std::nullopt;
  constexpr int kLeastTokens = 16;  // of prompts in a step: fewer cost little less, for weights are read once for all
  const int least = std::min(kLeastTokens, options.max_batched_tokens);
  return StepPacer(std::int64_t{1000} * options.max_step_ms, least, options.max_batched_tokens);
}

std::vector<KvGroupSpec> group_specs(const KvPool& pool) {
  std::vector<KvGroupSpec> specs;
  for (const KvGroupLayout& group : pool.groups()) specs.push_back({.window = group.window});
  return specs;
}

BatchUploader::Shape upload_shape(const ModelConfig& config, int block_size) {
  BatchUploader::Shape shape{config.num_heads, config.num_kv_heads, config.head_size, {}, block_size};
  for (const KvGroupLayout& group : kv_group_layouts(config)) shape.windows.push_back(group.window);
  return shape;
}

std::vector<TokenId> all_end_ids(const Tokenizer& tokenizer, const ModelConfig& config) {
  std::vector<TokenId> ids(tokenizer.end_ids().begin(), tokenizer.end_ids().end());
  ids.insert(ids.end(), config.end_token_ids.begin(), config.end_token_ids.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

StepLimits step_limits(const EngineOptions& options, const ModelConfig& config) {
  StepLimits limits;
  limits.max_tokens = options.max_batched_tokens;
  limits.max_sequences = padded_rows(std::min(options.max_running, options.max_batched_tokens), options.max_batched_tokens);
  limits.max_context = options.max_context;
  limits.max_logit_rows = max_logit_rows(config);
  limits.vocab_size = config.vocab_size;
  return limits;
}

Backend& prepared(Backend& backend, const StepLimits& limits) {
  backend.prepare(limits);
  return backend;
}

}  // namespace

// A large vocabulary takes as long as the weights, so both are loaded at once; on this thread alone if there can be no other.
Engine::Impl::Impl(const std::string& model_path, const EngineOptions& options, std::unique_ptr<Backend> backend)
    : Impl{make_backend(options, std::move(backend)),
           std::async(std::launch::async | std::launch::deferred, load_tokenizer, model_path), model_path, options} {}

Engine::Impl::Impl(std::unique_ptr<Backend> backend, std::future<Tokenizer> tokenizer, const std::string& model_path,
                   const EngineOptions& options)
    : backend_(std::move(backend)),
      model_(load_model(model_path, *backend_)),
      tokenizer_(tokenizer.get()),
      end_ids_(all_end_ids(tokenizer_, model_.config)),
      options_(complete(options, model_.config)),
      uploader_(prepared(*backend_, step_limits(options_, model_.config)), upload_shape(model_.config, options_.block_size),
                step_limits(options_, model_.config)),
      pool_(*backend_, model_.config, kv_dtype(options_), options_.block_size,
            choose_pool_size(options_, model_.config, *backend_)),
      decoder_(model_.config, model_.weights, *backend_, pool_, options_.max_batched_tokens, max_logit_rows(model_.config)),
      scheduler_(scheduler_options(options_), group_specs(pool_)),
      pacer_(pacer(options_)) {
  // For tests, as QUIRE_KV_POISON is: where blocks lie must not show in any answer.
  if (const char* seed = std::getenv("QUIRE_KV_PERMUTE")) {
    scheduler_.allocator_for_test().permute(static_cast<std::uint32_t>(std::strtoul(seed, nullptr, 10)));
  }
}

}  // namespace quire
