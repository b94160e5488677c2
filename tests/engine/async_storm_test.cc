// Many threads at one AsyncEngine: submitting, cancelling, asking, leaving requests behind for the destructor. Each accepted
// choice gets one last event. Meant for ThreadSanitizer as much as for its own checks.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "quire/async_engine.h"
#include "quire/error.h"
#include "tests/support/tiny_model.h"

namespace quire::test {
namespace {

constexpr int kRounds = 4;
constexpr int kThreads = 3;
constexpr int kRequestsEach = 20;

Request request(std::mt19937& random) {
  Request r;
  r.prompt = {1, 2, 3, static_cast<TokenId>(random() % 50)};
  r.sampling.seed = random();
  r.sampling.max_tokens = 1 + static_cast<int>(random() % 12);
  r.sampling.n = 1 + static_cast<int>(random() % 3);
  r.sampling.ignore_eos = true;
  if (random() % 4 == 0) r.sampling.best_of = r.sampling.n + 1;
  if (random() % 6 == 0) r.timeout_us = random() % 5000;
  return r;
}

struct Counts {
  std::atomic<int> accepted{0};  // choices
  std::atomic<int> ended{0};
  std::atomic<int> refused{0};  // requests
};

class Client {
 public:
  Client(AsyncEngine& async, Counts& counts, unsigned seed) : async_(async), counts_(counts), random_(seed) {}

  void run() {
    for (int i = 0; i < kRequestsEach; ++i) {
      try {
        act(request(random_), random_() % 6);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kUnavailable) << error.what();
        ++counts_.refused;
      }
    }
  }

 private:
  void act(const Request& r, unsigned kind) {
    const int num_choices = r.sampling.n;
    const RequestId id = async_.submit(r, [this, kind](const TokenEvent& event) {
      if (event.finish_reason != FinishReason::kNone) ++counts_.ended;
      if (kind == 1) async_.cancel(event.request_id);
      if (kind == 2) submit_another();
    });
    counts_.accepted += num_choices;
    if (kind == 3 || kind == 4) async_.cancel(id);
    if (kind == 4) {
      EXPECT_FALSE(async_.cancel(id)) << "cancelled twice";
    }
    EXPECT_GE(async_.stats().num_steps, 0);
  }

  void submit_another() {
    Request r;
    r.prompt = {5, 6};
    r.sampling.max_tokens = 1;
    try {
      async_.submit(r, [this](const TokenEvent& event) { counts_.ended += event.finish_reason != FinishReason::kNone ? 1 : 0; });
      ++counts_.accepted;
    } catch (const Error&) {
      ++counts_.refused;
    }
  }

  AsyncEngine& async_;
  Counts& counts_;
  std::mt19937 random_;
};

TEST(AsyncStorm, EachAcceptedChoiceEndsOnce) {
  const auto path = std::filesystem::path(::testing::TempDir()) / "async_storm_test.gguf";
  write_gguf(tiny_model_spec("llama"), path);
  for (int round = 0; round < kRounds; ++round) {
    Counts counts;
    std::vector<std::unique_ptr<Client>> clients;  // outlive the engine, whose callbacks use them
    {
      AsyncEngine async(Engine(path, {.num_threads = 1, .block_size = 8, .num_blocks = 40}), {.max_queued = 20});
      std::vector<std::thread> threads;
      for (int t = 0; t < kThreads; ++t) {
        clients.push_back(std::make_unique<Client>(async, counts, static_cast<unsigned>(100 * round + t)));
        threads.emplace_back([client = clients.back().get()] { client->run(); });
      }
      if (round % 4 == 3) async.drain();  // in the middle of it
      for (std::thread& thread : threads) thread.join();
      if (round % 2 == 0) {
        async.drain_and_wait();
        EXPECT_EQ(async.stats().held_blocks, 0);
      }
    }
    EXPECT_EQ(counts.ended, counts.accepted) << "round " << round << ", refused " << counts.refused;
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace quire::test
