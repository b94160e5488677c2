// Random schedules on the CUDA backend: some of sixteen requests of every kind arrive, some copies of them are cancelled, the
// pool is as tight as it may be, chunks, batches, blocks and the prefix cache are whatever the seed says. Every answer is, bit
// for bit, that of the request alone. QUIRE_SCHEDULES=N tries N seeds in the place of a few.
#include <gtest/gtest.h>

#include <random>

#include "core/math.h"
#include "tests/engine/cuda_engine.h"
#include "tests/engine/outcome.h"
#include "tests/support/simt/runtime.h"

namespace quire::test {
namespace {

constexpr int kLongest = 40, kMaxTokens = 14;

class CudaRandomSchedule : public CudaEngineFixture {
 protected:
  int num_groups() const { return family() == "gemma3" ? 6 : 1; }
};
INSTANTIATE_TEST_SUITE_P(Families, CudaRandomSchedule, ::testing::Values("llama", "gemma3"),
                         [](const auto& test) { return std::string(test.param); });

struct Schedule {
  EngineOptions options;
  std::vector<std::size_t> chosen;   // places in the list of all
  std::vector<int> arrival;          // step of each
  std::vector<int> neighbour_until;  // step at which a copy of it is cancelled; below 0: there is none

  std::string describe() const {
    return "block size " + std::to_string(options.block_size) + ", budget " + std::to_string(options.max_batched_tokens) +
           ", running " + std::to_string(options.max_running) + ", blocks " + std::to_string(options.num_blocks) + ", requests " +
           std::to_string(chosen.size()) + (options.prefix_cache ? ", prefix cache" : "");
  }
};

Schedule random_schedule(std::uint32_t seed, std::size_t num_requests, int num_groups) {
  std::mt19937 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<int>(random() % n); };
  Schedule schedule;
  EngineOptions& options = schedule.options = cuda_options();
  options.block_size = 8 << below(3);
  options.max_batched_tokens = 1 + below(below(2) == 0 ? 8 : 90);
  options.max_running = 1 + below(10);
  options.prefix_cache = below(4) != 0;
  const int fitting = ceil_div(kLongest + kMaxTokens, options.block_size);
  options.num_blocks = 1 + num_groups * (fitting + (below(4) == 0 ? 3 : 0));
  const int count = 3 + below(5);
  for (int i = 0; i < count; ++i) {
    schedule.chosen.push_back(static_cast<std::size_t>(below(num_requests)));
    schedule.arrival.push_back(below(12));
    schedule.neighbour_until.push_back(below(3) == 0 ? schedule.arrival.back() + below(9) : -1);
  }
  return schedule;
}

// By place in the schedule and choice.
Outcomes run_schedule(Engine& engine, const std::vector<Request>& all, const Schedule& schedule) {
  Outcomes outcomes;
  std::map<RequestId, int> place_of;
  std::map<RequestId, int> neighbours;
  for (int step = 0; step < 12 || engine.has_work(); ++step) {
    for (std::size_t i = 0; i < schedule.chosen.size(); ++i) {
      if (schedule.arrival[i] != step) continue;
      const Request& request = all[schedule.chosen[i]];
      if (schedule.neighbour_until[i] >= 0) neighbours[engine.submit(request)] = schedule.neighbour_until[i];
      place_of[engine.submit(request)] = static_cast<int>(i);
    }
    for (const auto& [id, until] : neighbours) {
      if (until == step) engine.cancel(id);
    }
    collect(engine.step(), place_of, outcomes);
    if (step > 20'000) {
      ADD_FAILURE() << "the engine makes no progress";
      break;
    }
  }
  return outcomes;
}

TEST_P(CudaRandomSchedule, LeavesNoTraceInTheBits) {
  const std::vector<Request> all = mixed_requests(tiny_vocab_size(), kLongest, kMaxTokens);
  EngineOptions plain = cuda_options();
  plain.prefix_cache = false;
  Engine quiet = cuda_engine(path_, plain);
  Outcomes alone;
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (auto& [key, outcome] : run(quiet, {all[i]})) alone[{static_cast<int>(i), key.second}] = std::move(outcome);
  }
  const char* const wanted = std::getenv("QUIRE_SCHEDULES");
  const int num_schedules = wanted != nullptr ? std::atoi(wanted) : 6;
  std::int64_t preemptions = 0, cached_tokens = 0;
  for (int seed = 1; seed <= num_schedules; ++seed) {
    const Schedule schedule = random_schedule(static_cast<std::uint32_t>(seed), all.size(), num_groups());
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ": " << schedule.describe());
    Engine engine = cuda_engine(path_, schedule.options);
    const std::int64_t allocations = simt::runtime_counts().allocations;
    Outcomes expected;
    for (std::size_t i = 0; i < schedule.chosen.size(); ++i) {
      for (const auto& [key, outcome] : alone) {
        if (key.first == static_cast<int>(schedule.chosen[i])) expected[{static_cast<int>(i), key.second}] = outcome;
      }
    }
    ASSERT_EQ(run_schedule(engine, all, schedule), expected);
    EXPECT_EQ(engine.stats().held_blocks, 0);
    EXPECT_EQ(simt::runtime_counts().allocations, allocations) << "a step allocated";
    preemptions += engine.stats().num_preemptions;
    cached_tokens += engine.stats().cached_tokens;
  }
  if (num_schedules < 6) return;
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(cached_tokens, 0);
}

}  // namespace
}  // namespace quire::test
