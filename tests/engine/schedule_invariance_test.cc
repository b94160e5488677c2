// The first promise: the schedule never changes the answer. Sixteen mixed requests alone, then together under every mix of batch
// size, token budget, block size, pool size, prefix cache, threads, instruction set and cancelled neighbours: tokens, texts and
// logprobs are equal bit for bit.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "kernels/cpu/kernels.h"
#include "tests/engine/outcome.h"
#include "tests/support/tiny_model.h"

namespace quire::test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kStride = 29;  // every 29th mix: sanitizers are slow, and look for other faults
#else
constexpr int kStride = 1;
#endif

constexpr int kLongest = 70;    // prompt tokens
constexpr int kMaxTokens = 12;  // generated

struct Mix {
  EngineOptions options;
  RunPlan plan;
  std::string isa;

  std::string describe() const {
    return isa + ", block " + std::to_string(options.block_size) + ", budget " + std::to_string(options.max_batched_tokens) +
           ", running " + std::to_string(options.max_running) + ", blocks " + std::to_string(options.num_blocks) +
           (options.prefix_cache ? ", prefix cache" : ", no prefix cache") + ", threads " + std::to_string(options.num_threads) +
           ", per step " + std::to_string(plan.per_step) + (plan.cancel_neighbours ? ", cancelled neighbours" : "");
  }
};

std::vector<std::string> isas() {
  std::vector<std::string> names = {"portable"};
  if (cpu::find_kernels("avx2") != nullptr) names.emplace_back("avx2");
  return names;
}

void use_isa(const std::string& isa) { setenv("QUIRE_CPU_ISA", isa.c_str(), 1); }

// The pool just large enough for the longest request alone, so that running several means preempting.
std::int64_t tight_pool(int block_size, int num_groups) {
  const int per_group = (kLongest + kMaxTokens + block_size - 1) / block_size + 1;
  return 1 + num_groups * per_group;
}

std::vector<Mix> all_mixes(int num_groups) {
  std::vector<Mix> mixes;
  for (const int block_size : {8, 16, 32, 64}) {
    for (const int budget : {1, 7, 16, 64, 512}) {
      for (const int running : {1, 5, 64}) {
        for (const bool tight : {true, false}) {
          for (const bool prefix_cache : {false, true}) {
            const int index = static_cast<int>(mixes.size());
            Mix mix;
            mix.options.block_size = block_size;
            mix.options.max_batched_tokens = budget;
            mix.options.max_running = running;
            mix.options.num_blocks = tight ? tight_pool(block_size, num_groups) : 2000;
            mix.options.prefix_cache = prefix_cache;
            mix.options.num_threads = 1 + index % 2;
            mix.plan.per_step = index % 3 == 0 ? 1 : 1000;
            mix.plan.cancel_neighbours = index % 5 == 0;
            mix.plan.repeats = prefix_cache ? 2 : 1;                // cold, then warm
            mix.isa = index % 8 == 0 ? "portable" : isas().back();  // the portable kernels are slow by nature
            mixes.push_back(mix);
          }
        }
      }
    }
  }
  return mixes;
}

class TinyScheduleInvariance : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    setenv("QUIRE_KV_POISON", "1", 1);
    path_ = std::filesystem::path(::testing::TempDir()) / (std::string("invariance_") + GetParam() + ".gguf");
    TinyModelSpec spec = tiny_model_spec(GetParam());
    write_gguf(spec, path_);
  }
  void TearDown() override {
    unsetenv("QUIRE_KV_POISON");
    unsetenv("QUIRE_CPU_ISA");
    std::filesystem::remove(path_);
  }
  std::filesystem::path path_;
};

TEST_P(TinyScheduleInvariance, EveryMixGivesTheBitsOfEachRequestAlone) {
  const std::vector<Request> requests = mixed_requests(tiny_vocab_size(), kLongest, kMaxTokens);
  use_isa("portable");
  EngineOptions plain;
  plain.num_threads = 1;
  plain.num_blocks = 2000;
  plain.prefix_cache = false;
  const Outcomes alone = run_alone(path_, plain, requests);
  ASSERT_EQ(alone.size(), requests.size() + 3);  // 2 and 1 more choices

  std::int64_t preemptions = 0, cached_tokens = 0;
  const int num_groups = std::string(GetParam()) == "gemma3" ? tiny_gemma_groups() : 1;
  const std::vector<Mix> mixes = all_mixes(num_groups);
  for (std::size_t i = 0; i < mixes.size(); i += kStride) {
    const Mix& mix = mixes[i];
    use_isa(mix.isa);
    Engine engine(path_, mix.options);
    ASSERT_EQ(engine.stats().cpu_isa, mix.isa);
    ASSERT_EQ(run(engine, requests, mix.plan), alone) << GetParam() << ": " << mix.describe();
    const EngineStats stats = engine.stats();
    ASSERT_EQ(stats.held_blocks, 0) << mix.describe();
    ASSERT_EQ(stats.free_blocks + stats.cached_blocks, stats.total_blocks) << mix.describe();
    preemptions += stats.num_preemptions;
    cached_tokens += stats.cached_tokens;
  }
  // The mixes must have meant something.
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(cached_tokens, 0);
}

INSTANTIATE_TEST_SUITE_P(Families, TinyScheduleInvariance, ::testing::Values("llama", "qwen2", "qwen3", "gemma3"),
                         [](const auto& test) { return std::string(test.param); });

class RealScheduleInvariance : public ::testing::TestWithParam<const char*> {};

TEST_P(RealScheduleInvariance, MixesGiveTheBitsOfEachRequestAlone) {
  const std::filesystem::path path = std::filesystem::path(QUIRE_SOURCE_DIR) / "models" / GetParam();
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there: scripts/fetch_model.sh";
  const std::vector<Request> requests = mixed_requests(49152, 40, 8);
  unsetenv("QUIRE_CPU_ISA");
  EngineOptions plain;
  plain.prefix_cache = false;
  const Outcomes alone = run_alone(path, plain, requests);

  // Not the full product, which takes hours on a real model: every value of every option, and the pairs likeliest to disagree.
  std::vector<Mix> mixes;
  const auto add = [&](int block_size, int budget, int running, std::int64_t blocks, bool cache, int threads, RunPlan plan) {
    Mix mix;
    mix.options.block_size = block_size;
    mix.options.max_batched_tokens = budget;
    mix.options.max_running = running;
    mix.options.num_blocks = blocks;
    mix.options.prefix_cache = cache;
    mix.options.num_threads = threads;
    mix.plan = plan;
    mixes.push_back(mix);
  };
  // Pools that hold two or so of the longest requests: 48 tokens in every group.
  const bool has_windows = std::string(GetParam()).find("gemma") != std::string::npos;
  const std::int64_t groups = has_windows ? 6 : 1;
  add(8, 512, 64, 1 + groups * 8, true, 2, {.per_step = 1});
  add(8, 7, 5, 1 + groups * 11, true, 1, {.cancel_neighbours = true});
  add(16, 16, 64, 2000, true, 2, {.per_step = 1, .repeats = 2});
  add(16, 64, 64, 1 + groups * 5, false, 2, {});
  add(32, 64, 3, 2000, true, 1, {.repeats = 2});
  add(64, 512, 64, 2000, true, 2, {.cancel_neighbours = true, .repeats = 2});
  add(64, 1, 16, 2000, false, 2, {});
  for (const Mix& mix : mixes) {
    Engine engine(path, mix.options);
    ASSERT_EQ(run(engine, requests, mix.plan), alone) << mix.describe();
  }
}

// The portable kernels are slow by nature, so fewer requests, each against the machine's best instruction set.
TEST_P(RealScheduleInvariance, InstructionSetsGiveTheSameBits) {
  const std::filesystem::path path = std::filesystem::path(QUIRE_SOURCE_DIR) / "models" / GetParam();
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there: scripts/fetch_model.sh";
  std::vector<Request> requests = mixed_requests(49152, 16, 4);
  requests.resize(6);
  std::vector<Outcomes> outcomes;
  for (const std::string& isa : isas()) {
    use_isa(isa);
    Engine engine(path, EngineOptions{});
    outcomes.push_back(run(engine, requests));
  }
  unsetenv("QUIRE_CPU_ISA");
  if (outcomes.size() < 2) GTEST_SKIP() << "this machine runs the portable kernels only";
  EXPECT_EQ(outcomes[0], outcomes[1]);
}

INSTANTIATE_TEST_SUITE_P(Models, RealScheduleInvariance,
                         ::testing::Values("SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"),
                         [](const auto& test) { return std::string(test.param).substr(0, 5) == "SmolL" ? "SmolLM2" : "Gemma3"; });

}  // namespace
}  // namespace quire::test
