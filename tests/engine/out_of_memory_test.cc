// Memory runs out: the k-th allocation of a call fails, for every k, once or from then on. Whatever call it was, what leaves is
// an Error, each choice gets one last event, and every block comes back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <optional>

#include "quire/async_engine.h"
#include "quire/engine.h"
#include "quire/error.h"
#include "tests/engine/shortage.h"
#include "tests/support/tiny_model.h"

namespace quire::test {
namespace {

using ::testing::HasSubstr;

constexpr int kMaxSteps = 200;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kStride = 9;  // sanitizers are slow
#else
constexpr int kStride = 1;
#endif

// What every request of one engine got.
class Ledger {
 public:
  void expect(RequestId id, const Request& request) { requests_.emplace(id, request); }

  void take(const std::vector<TokenEvent>& events) {
    for (const TokenEvent& event : events) {
      Choice& choice = choices_[{event.request_id, event.index}];
      EXPECT_EQ(choice.reason, FinishReason::kNone) << "an event after the last";
      choice.reason = event.finish_reason;
      if (event.token >= 0) ++choice.num_tokens;
      EXPECT_EQ(event.usage.completion_tokens, choice.num_tokens);
      EXPECT_EQ(event.usage.prompt_tokens, 20);
      if (choice.num_tokens > 0) {
        EXPECT_EQ(event.usage.cached_tokens, requests_.at(event.request_id).sampling.prompt_logprobs ? 0 : 16);
      }
      if (event.finish_reason == FinishReason::kError) {
        EXPECT_THAT(event.error, HasSubstr("memory"));
      }
    }
  }

  void expect_one_end_each() const {
    std::size_t expected = 0;
    for (const auto& [id, request] : requests_) expected += static_cast<std::size_t>(request.sampling.n);
    EXPECT_EQ(choices_.size(), expected);
    for (const auto& [key, choice] : choices_) EXPECT_NE(choice.reason, FinishReason::kNone);
  }

 private:
  struct Choice {
    FinishReason reason = FinishReason::kNone;
    int num_tokens = 0;
  };
  std::map<RequestId, Request> requests_;
  std::map<std::pair<RequestId, int>, Choice> choices_;
};

class OutOfMemory : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    path_ = std::filesystem::path(::testing::TempDir()) / "out_of_memory_test.gguf";
    write_gguf(tiny_model_spec("llama"), path_);
  }
  static void TearDownTestSuite() { std::filesystem::remove(path_); }

  // Its prefix cache holds the first 16 tokens of every request below.
  static Engine engine() {
    Engine made(path_, {.num_threads = 1, .block_size = 8, .num_blocks = 64, .max_batched_tokens = 24});
    made.submit(plain_request());
    while (made.has_work()) made.step();
    return made;
  }

  static Request plain_request() {
    Request r;
    r.prompt.assign(20, 7);
    r.sampling.seed = 1;
    r.sampling.max_tokens = 3;
    r.sampling.ignore_eos = true;
    return r;
  }

  // Of several choices, the best of several, with stop strings and whatever else allocates.
  static std::vector<Request> requests() {
    std::vector<Request> all(4, plain_request());
    all[0].sampling.n = 2;
    all[0].sampling.stop = {"a long stop string that holds text back"};
    all[0].sampling.repetition_penalty = 1.2f;
    all[1].sampling.best_of = 3;
    all[1].sampling.logprobs = 2;
    all[1].sampling.logit_bias = {{5, 1.0f}};
    all[2].sampling.min_tokens = 2;
    all[2].sampling.token_mask = [](std::span<const TokenId>, std::span<std::uint32_t>) {};
    all[3].sampling.prompt_logprobs = 2;
    return all;
  }

  static void expect_whole(const Engine& e) {
    const EngineStats stats = e.stats();
    EXPECT_EQ(stats.held_blocks, 0);
    EXPECT_EQ(stats.free_blocks + stats.cached_blocks, stats.total_blocks);
    EXPECT_EQ(stats.num_running + stats.num_waiting, 0);
  }

  // A step whose k-th allocation fails, and what it throws.
  static std::optional<Error> short_step(Engine& e, Ledger& ledger, std::int64_t k, bool lasts = false) {
    std::vector<TokenEvent> events;
    try {
      const Shortage shortage(k, lasts);
      events = e.step();
    } catch (const Error& error) {
      return error;
    }
    ledger.take(events);
    return std::nullopt;
  }

  static void expect_refusal(Engine& e, const std::string& reason) {
    try {
      e.submit(plain_request());
      ADD_FAILURE() << "a failed engine takes a request";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
      EXPECT_THAT(error.what(), HasSubstr(reason));
    }
  }

  // Steps until no work is left; returns the errors that were thrown.
  static std::vector<Error> finish(Engine& e, Ledger& ledger) {
    std::vector<Error> errors;
    for (int step = 0; e.has_work() && step < kMaxSteps; ++step) {
      try {
        ledger.take(e.step());
      } catch (const Error& error) {
        errors.push_back(error);
      }
    }
    EXPECT_FALSE(e.has_work());
    return errors;
  }

  static inline std::filesystem::path path_;
};

TEST_F(OutOfMemory, SubmitIsAllOrNothing) {
  for (const Request& request : requests()) {
    for (const bool lasts : {false, true}) {
      Engine e = engine();
      Ledger ledger;
      int num_failed = 0;
      for (std::int64_t k = 1; k == 1 || Shortage::has_struck(); k += kStride) {
        const EngineStats before = e.stats();
        Request copy = request;
        RequestId id = 0;
        try {
          const Shortage shortage(k, lasts);
          id = e.submit(std::move(copy));
        } catch (const Error& error) {
          ++num_failed;
          EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory) << error.what();
          EXPECT_EQ(e.stats().num_waiting, before.num_waiting);
        }
        if (id != 0) ledger.expect(id, request);
      }
      EXPECT_GT(num_failed, 10 / kStride);
      EXPECT_TRUE(finish(e, ledger).empty());
      ledger.expect_one_end_each();
      expect_whole(e);
    }
  }
}

TEST_F(OutOfMemory, AFailedStepEndsEveryChoiceOnce) {
  int num_failed = 0;
  for (const bool lasts : {false, true}) {
    for (int step = 0; step < 6; ++step) {
      for (std::int64_t k = 1; k == 1 || Shortage::has_struck(); k += kStride) {
        Engine e = engine();
        Ledger ledger;
        for (const Request& request : requests()) ledger.expect(e.submit(request), request);
        for (int i = 0; i < step; ++i) ledger.take(e.step());
        const std::optional<Error> error = short_step(e, ledger, k, lasts);
        if (error) {
          ++num_failed;
          EXPECT_EQ(error->code(), ErrorCode::kOutOfMemory) << error->what();
          expect_refusal(e, error->what());
        }
        EXPECT_TRUE(finish(e, ledger).empty()) << "a failure is thrown twice";
        ledger.expect_one_end_each();
        expect_whole(e);
        ASSERT_FALSE(HasFailure()) << "step " << step << ", allocation " << k << (lasts ? " and all that follow" : "");
      }
    }
  }
  EXPECT_GT(num_failed, 100 / kStride);
}

// The step after the failed one hands out the last events, and allocates too.
TEST_F(OutOfMemory, HandingOutTheEndsMayFailAndGoesOn) {
  for (std::int64_t k = 1; k == 1 || Shortage::has_struck(); k += kStride) {
    Engine e = engine();
    Ledger ledger;
    for (const Request& request : requests()) ledger.expect(e.submit(request), request);
    ledger.take(e.step());
    ASSERT_TRUE(short_step(e, ledger, 1));
    short_step(e, ledger, k);
    EXPECT_TRUE(finish(e, ledger).empty());
    ledger.expect_one_end_each();
    expect_whole(e);
    ASSERT_FALSE(HasFailure()) << "allocation " << k;
  }
}

// A prompt in chunks is admitted, and known to be cached in part, long before its first token.
TEST_F(OutOfMemory, AnEndBeforeTheFirstTokenTellsTheCachedTokens) {
  Engine e = engine();
  Request request = plain_request();
  request.prompt.resize(100, 9);
  e.submit(request);
  ASSERT_TRUE(e.step().empty());
  EXPECT_THROW(
      {
        const Shortage shortage(1);
        e.step();
      },
      Error);
  const std::vector<TokenEvent> events = e.step();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].finish_reason, FinishReason::kError);
  EXPECT_EQ(events[0].usage.prompt_tokens, 100);
  EXPECT_EQ(events[0].usage.cached_tokens, 16);
  EXPECT_EQ(events[0].usage.completion_tokens, 0);
}

TEST_F(OutOfMemory, CancelNeedsNoMemory) {
  for (int steps = 0; steps < 3; ++steps) {
    Engine e = engine();
    Ledger ledger;
    std::vector<RequestId> ids;
    for (const Request& request : requests()) {
      ids.push_back(e.submit(request));
      ledger.expect(ids.back(), request);
    }
    for (int i = 0; i < steps; ++i) ledger.take(e.step());
    for (const RequestId id : ids) {
      const Shortage shortage(1, true);
      EXPECT_TRUE(e.cancel(id));
    }
    EXPECT_TRUE(finish(e, ledger).empty());
    ledger.expect_one_end_each();
    expect_whole(e);
  }
}

TEST_F(OutOfMemory, AsyncSubmitIsAllOrNothing) {
  std::atomic<int> num_ends = 0;
  int num_accepted = 0, num_failed = 0;
  {
    AsyncEngine async(engine());
    for (std::int64_t k = 1; k == 1 || Shortage::has_struck(); ++k) {
      Request request = plain_request();
      EventCallback count = [&](const TokenEvent& event) { num_ends += event.finish_reason != FinishReason::kNone ? 1 : 0; };
      try {
        const Shortage shortage(k);
        async.submit(std::move(request), std::move(count));
        ++num_accepted;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory) << error.what();
        ++num_failed;
      }
    }
  }
  EXPECT_EQ(num_ends, num_accepted);
  EXPECT_GT(num_failed, 2);
}

// The callback of one request makes the k-th allocation of the engine's thread fail, wherever that is.
TEST_F(OutOfMemory, NothingEndsTheThreadOfAnAsyncEngine) {
  std::atomic<bool> has_struck = true;  // by the last callback
  for (std::int64_t k = 1; has_struck; k += kStride) {
    AsyncEngine async(engine());
    std::atomic<int> num_ends = 0;
    int num_accepted = 0;
    const auto count = [&](const TokenEvent& event) {
      num_ends += event.finish_reason != FinishReason::kNone ? 1 : 0;
      has_struck = Shortage::has_struck();
    };
    bool is_armed = false;
    async.submit(plain_request(), [&](const TokenEvent& event) {
      if (!is_armed) Shortage::begin(k);
      is_armed = true;
      count(event);
    });
    ++num_accepted;
    for (const Request& request : requests()) {
      try {
        async.submit(request, count);
        num_accepted += request.sampling.n;
      } catch (const Error& error) {  // it has failed already
        EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
      }
    }
    async.drain_and_wait();
    EXPECT_EQ(num_ends, num_accepted) << "allocation " << k;
    EXPECT_EQ(async.stats().num_running, 0);
  }
}

}  // namespace
}  // namespace quire::test
