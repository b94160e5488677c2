// The first promise on real models: mixes of options that are likeliest to disagree, and the instruction sets against each other.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/engine/schedule_mix.h"

namespace quire::test {
namespace {

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
  for (std::size_t i = 1; i < outcomes.size(); ++i) EXPECT_EQ(outcomes[0], outcomes[i]) << isas()[i];
}

INSTANTIATE_TEST_SUITE_P(Models, RealScheduleInvariance,
                         ::testing::Values("SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"),
                         [](const auto& test) { return std::string(test.param).substr(0, 5) == "SmolL" ? "SmolLM2" : "Gemma3"; });

}  // namespace
}  // namespace quire::test
