// The engine on the CUDA backend: src/backend/cuda and kernels/cuda as they are. Tiny models of every family answer as on the
// CPU, and the schedule leaves no trace in the bits, recorded steps included.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "backend/cuda/cuda_backend.h"
#include "engine/engine_impl.h"
#include "tests/engine/cuda_engine.h"
#include "tests/engine/feature_pairs.h"
#include "tests/engine/outcome.h"
#include "tests/support/expect_error.h"

namespace quire::test {
namespace {

class CudaEngine : public CudaEngineFixture {};

// Emulated kernels under AddressSanitizer are slow, and families differ in arithmetic more than in memory: there one of them,
// with windows, several KV groups and norms of queries and keys, stands for all.
#if defined(__SANITIZE_ADDRESS__)
#define QUIRE_EMULATED_FAMILIES "gemma3"
#else
#define QUIRE_EMULATED_FAMILIES "llama", "qwen2", "qwen3", "gemma3"
#endif

double logprob(std::uint32_t bits) { return std::bit_cast<float>(bits); }

// Sums of |a - b| over logprobs.
struct Distance {
  double total = 0.0;
  int count = 0;
  void add(std::uint32_t a, std::uint32_t b, double most) {
    const double difference = std::abs(logprob(a) - logprob(b));
    EXPECT_LT(difference, most) << "number " << count;
    total += difference;
    ++count;
  }
};

// BF16 has 8 bits: about 1/256 of error in each value of the residual stream, and the logits of these models are a few units.
// With quantised weights the CPU's 8-bit activations add theirs.
TEST_P(CudaEngine, AnswersAsTheCpuDoes) {
  EngineOptions cpu_options = cuda_options();
  cpu_options.device = {};
  cpu_options.kv_type = KvType::kBF16;
  const std::vector<Request> requests = {scored_request(1, 70), scored_request(2, 5), scored_request(3, 130)};
  Engine cpu(path_, cpu_options);
  const Outcomes expected = run(cpu, requests);
  for (const bool deterministic : {true, false}) {
    EngineOptions options = cuda_options();
    options.deterministic = deterministic;
    Engine engine = cuda_engine(path_, options);
    Distance prompt, generated;
    for (const auto& [key, outcome] : run(engine, requests)) {
      const Outcome& wanted = expected.at(key);
      EXPECT_EQ(outcome.finish_reason, wanted.finish_reason);
      ASSERT_EQ(outcome.prompt_logprob_bits.size(), wanted.prompt_logprob_bits.size());
      for (std::size_t i = 0; i < outcome.prompt_logprob_bits.size(); ++i) {
        prompt.add(outcome.prompt_logprob_bits[i], wanted.prompt_logprob_bits[i], 0.5);
      }
      // The likeliest token's logprob can be compared up to where the answers part at a near tie, that token included. Each
      // token has four logprobs: its own and three alternatives.
      for (std::size_t i = 0; i < outcome.tokens.size(); ++i) {
        generated.add(outcome.logprob_bits[4 * i], wanted.logprob_bits[4 * i], 0.5);
        if (outcome.tokens[i] != wanted.tokens[i]) break;
      }
    }
    ASSERT_GT(prompt.count, 200);
    ASSERT_GT(generated.count, 9);
    EXPECT_LT(prompt.total / prompt.count, 0.07);
    EXPECT_LT(generated.total / generated.count, 0.07);
  }
}

TEST_P(CudaEngine, TheScheduleLeavesNoTraceInTheBits) {
  const std::vector<Request> all = mixed_requests(tiny_vocab_size(), 40, 6);
  const std::vector<Request> requests(all.begin() + 4, all.begin() + 12);
  EngineOptions plain = cuda_options();
  plain.prefix_cache = false;
  Outcomes alone;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    Engine engine = cuda_engine(path_, plain);
    for (auto& [key, outcome] : run(engine, {requests[i]})) alone[{static_cast<int>(i), key.second}] = std::move(outcome);
  }
  struct Mix {
    int block_size, budget, running;
    std::int64_t num_blocks;
    RunPlan plan;
  };
  const int groups = family() == "gemma3" ? 6 : 1;
  const Mix mixes[] = {
      {16, 7, 5, 500, {.per_step = 1}},
      {8, 64, 64, 1 + groups * 8, {.repeats = 2}},
      {32, 16, 3, 500, {.per_step = 2, .cancel_neighbours = true, .repeats = 2}},
  };
  std::int64_t preemptions = 0, cached_tokens = 0;
  for (const Mix& mix : mixes) {
    EngineOptions options = cuda_options();
    options.block_size = mix.block_size;
    options.max_batched_tokens = mix.budget;
    options.max_running = mix.running;
    options.num_blocks = mix.num_blocks;
    Engine engine = cuda_engine(path_, options);
    EXPECT_EQ(run(engine, requests, mix.plan), alone) << family() << ", block size " << mix.block_size;
    preemptions += engine.stats().num_preemptions;
    cached_tokens += engine.stats().cached_tokens;
    EXPECT_EQ(engine.stats().held_blocks, 0);
  }
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(cached_tokens, 0);
}

INSTANTIATE_TEST_SUITE_P(Families, CudaEngine, ::testing::Values(QUIRE_EMULATED_FAMILIES),
                         [](const auto& test) { return std::string(test.param); });

class CudaEngineOfOneFamily : public CudaEngineFixture {};
INSTANTIATE_TEST_SUITE_P(Llama, CudaEngineOfOneFamily, ::testing::Values("llama"));

// Whatever is refused is refused when the engine is made.
TEST_P(CudaEngineOfOneFamily, RefusesByNameWhatTheKernelsLack) {
  const auto make = [&](auto change, EngineOptions options = cuda_options()) {
    TinyModelSpec spec = cuda_model_spec("llama");
    change(spec);
    write_gguf(spec, path_);
    return cuda_engine(path_, options);
  };
  EXPECT_ERROR(make([](TinyModelSpec& spec) { spec.head_size = 48; }), ErrorCode::kUnsupported, "head_size is 48");
  EngineOptions options = cuda_options();
  options.kv_type = KvType::kF32;
  write_gguf(cuda_model_spec("llama"), path_);
  EXPECT_ERROR(make_engine(path_, options, create_cuda_backend(options.device, {.activation_dtype = DType::kF32})),
               ErrorCode::kUnsupported, "F32");
  EXPECT_ERROR(make_engine(path_, options, create_cuda_backend(options.device, {})), ErrorCode::kUnsupported, "KV pool is F32");
  EXPECT_ERROR(create_cuda_backend({DeviceKind::kCuda, 1}, {}), ErrorCode::kUnsupported, "cuda:1");
}

#if !defined(__SANITIZE_ADDRESS__)
// A recorded step is launched for longer contexts too, whose ranges are cut into more parts.
TEST_P(CudaEngineOfOneFamily, ReplayedStepsFollowAGrowingNumberOfParts) {
  TinyModelSpec spec = cuda_model_spec("llama");
  spec.max_context = 1024;
  write_gguf(spec, path_);
  Request request = scored_request(1, 880);
  request.sampling.prompt_logprobs.reset();
  request.sampling.max_tokens = 30;  // across position 896, where decode has four parts instead of three
  std::vector<Outcome> outcomes;
  for (const bool deterministic : {true, false}) {
    EngineOptions options = cuda_options();
    options.deterministic = deterministic;
    Engine engine = cuda_engine(path_, options);
    outcomes.push_back(run(engine, {request}).at({0, 0}));
  }
  const auto chosen = [](const Outcome& outcome, std::size_t i) { return logprob(outcome.logprob_bits[4 * i]); };
  ASSERT_EQ(outcomes[0].tokens.size(), 30u);
  for (std::size_t i = 0; i < 30; ++i) {
    ASSERT_NEAR(chosen(outcomes[0], i), chosen(outcomes[1], i), 0.1) << "token " << i;
    if (outcomes[0].tokens[i] != outcomes[1].tokens[i]) break;  // at a near tie
  }
}
#endif

class CudaEngineReplay : public CudaEngineFixture {};
INSTANTIATE_TEST_SUITE_P(OneAndSixGroups, CudaEngineReplay, ::testing::Values("llama", "gemma3"),
                         [](const auto& family) { return std::string(family.param); });

// Steps of decode rows are recorded and replayed, with other sequences, blocks and lengths in them than those recorded.
TEST_P(CudaEngineReplay, StepsOfOtherSequencesBlocksAndLengths) {
  std::vector<Request> requests;
  for (int i = 0; i < 7; ++i) {
    Request request = scored_request(static_cast<std::uint64_t>(i), 3 + 9 * i);
    request.sampling.prompt_logprobs.reset();
    request.sampling.max_tokens = 6 + 5 * i;
    requests.push_back(request);
  }
  Engine engine = cuda_engine(path_, cuda_options());
  const Outcomes together = run(engine, requests, {.per_step = 1});
  for (std::size_t i = 0; i < requests.size(); ++i) {
    Engine alone = cuda_engine(path_, cuda_options());
    EXPECT_EQ(run(alone, {requests[i]}).at({0, 0}), together.at({static_cast<int>(i), 0})) << i;
  }
}

class PeerBugs : public CudaEngineFixture {};
INSTANTIATE_TEST_SUITE_P(Llama, PeerBugs, ::testing::Values("llama"));

// lmdeploy 1744: prefix cache, a smaller KV type and many requests broke together only.
TEST_P(PeerBugs, B017_EveryPairOfFeaturesTogether) {
  constexpr std::size_t kDistinct = 8;
  for (const Features& features : kFeaturePairs) {
    SCOPED_TRACE(features.describe());
    TinyModelSpec spec = cuda_model_spec(features.windows ? "gemma3" : "llama");
    spec.num_layers = spec.num_heads = 2;
    spec.num_kv_heads = 1;
    write_gguf(spec, path_);
    EngineOptions plain = cuda_options();
    plain.num_blocks = 3000;
    plain.prefix_cache = false;
    plain.kv_type = features.kv_type;
    const std::vector<Request> requests = crowd(features, kDistinct);
    Engine quiet = cuda_engine(path_, plain);
    std::vector<Outcomes> kinds;
    Outcomes alone;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (i < kDistinct) kinds.push_back(run(quiet, {requests[i]}));
      for (const auto& [key, outcome] : kinds[i % kDistinct]) alone[{static_cast<int>(i), key.second}] = outcome;
    }
    Engine together = cuda_engine(path_, with(features, plain));
    EXPECT_EQ(run(together, requests), alone);
    EXPECT_EQ(together.stats().cached_tokens > 0, features.prefix_cache);
    EXPECT_EQ(together.stats().held_blocks, 0);
  }
}

}  // namespace
}  // namespace quire::test
