#include "tests/engine/cuda_engine.h"

#include "backend/cuda/cuda_backend.h"
#include "engine/engine_impl.h"

namespace quire::test {

TinyModelSpec cuda_model_spec(const std::string& family) {
  TinyModelSpec spec = tiny_model_spec(family);
  spec.head_size = family == "qwen3" ? 128 : 64;
  spec.num_layers = family == "gemma3" ? 6 : 2;
  if (family == "gemma3") spec.num_kv_heads = 1;
  return spec;
}

EngineOptions cuda_options() {
  EngineOptions options;
  options.device = {DeviceKind::kCuda, 0};
  options.num_blocks = 500;
  options.max_batched_tokens = 128;
  return options;
}

Engine cuda_engine(const std::string& path, const EngineOptions& options) {
  const DType type = options.kv_type == KvType::kF16 ? DType::kF16 : DType::kBF16;
  return make_engine(path, options,
                     create_cuda_backend(options.device, {.activation_dtype = type, .deterministic = options.deterministic}));
}

Request scored_request(std::uint64_t seed, int length) {
  Request request;
  for (int i = 0; i < length; ++i) request.prompt.push_back(static_cast<TokenId>((seed * 7919 + i * 104729 + i * i * 31) % 300));
  request.sampling.temperature = 0.0f;
  request.sampling.max_tokens = 6;
  request.sampling.ignore_eos = true;
  request.sampling.logprobs = 3;
  request.sampling.prompt_logprobs = 0;
  return request;
}

}  // namespace quire::test
