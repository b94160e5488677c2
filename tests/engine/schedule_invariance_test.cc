// The first promise: the schedule never changes the answer. Sixteen mixed requests alone, then together under every mix of batch
// size, token budget, block size, pool size, prefix cache, threads, instruction set, cancelled neighbours and places of blocks:
// tokens, texts and logprobs are equal bit for bit. Slots not written hold NaN.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "tests/engine/schedule_mix.h"
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

// The pool just large enough for the longest request alone, so that running several means preempting.
std::int64_t tight_pool(int block_size, int num_groups) {
  const int per_group = (kLongest + kMaxTokens + block_size - 1) / block_size + 1;
  return 1 + num_groups * per_group;
}

std::vector<Mix> all_mixes(int num_groups) {
  std::vector<std::string> fast = isas();
  if (fast.size() > 1) fast.erase(fast.begin());  // the portable kernels are slow by nature
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
            mix.options.max_step_ms = index % 4 == 1 ? 1 : 0;
            mix.options.num_blocks = tight ? tight_pool(block_size, num_groups) : 2000;
            mix.options.prefix_cache = prefix_cache;
            mix.options.num_threads = 1 + index % 2;
            mix.plan.per_step = index % 3 == 0 ? 1 : 1000;
            mix.plan.cancel_neighbours = index % 5 == 0;
            mix.plan.repeats = prefix_cache ? 2 : 1;  // cold, then warm
            mix.isa = index % 8 == 0 ? "portable" : fast[static_cast<std::size_t>(index / 2) % fast.size()];
            mix.placement = index % 4 == 3 ? 0 : index + 1;
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
    use_placement(0);
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
    use_placement(mix.placement);
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

}  // namespace
}  // namespace quire::test
