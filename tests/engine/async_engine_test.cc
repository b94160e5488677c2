#include "quire/async_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <thread>

#include "quire/error.h"
#include "tests/engine/outcome.h"
#include "tests/support/expect_error.h"
#include "tests/support/tiny_model.h"

namespace quire::test {
namespace {

using ::testing::HasSubstr;

class AsyncEngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::path(::testing::TempDir()) / "async_engine_test.gguf";
    write_gguf(tiny_model_spec("llama"), path_);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  Engine engine() const { return Engine(path_, {.num_threads = 1, .block_size = 8, .num_blocks = 128}); }

  static Request request(int seed, int max_tokens = 10) {
    Request r;
    r.prompt = {1, 2, 3, static_cast<TokenId>(seed % 50)};
    r.sampling.seed = seed;
    r.sampling.max_tokens = max_tokens;
    r.sampling.ignore_eos = true;
    return r;
  }

  // Takes a quarter of a second at least.
  static Request slow_request() {
    Request r = request(1, 250);
    r.sampling.token_mask = [](std::span<const TokenId>, std::span<std::uint32_t>) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    return r;
  }

  std::filesystem::path path_;
};

// What one request produced; waits for its end.
class Listener {
 public:
  EventCallback callback() {
    return [this](const TokenEvent& event) {
      const std::lock_guard lock(mutex_);
      if (event.token >= 0) tokens_.push_back(event.token);
      reason_ = event.finish_reason;
      changed_.notify_all();
    };
  }
  FinishReason wait() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(60), [&] { return reason_ != FinishReason::kNone; });
    return reason_;
  }
  std::vector<TokenId> tokens() {
    const std::lock_guard lock(mutex_);
    return tokens_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<TokenId> tokens_;
  FinishReason reason_ = FinishReason::kNone;
};

TEST_F(AsyncEngineTest, ManyThreadsGetTheAnswersOfASynchronousEngine) {
  constexpr int kThreads = 4, kEach = 8;
  std::vector<Request> requests;
  for (int i = 0; i < kThreads * kEach; ++i) requests.push_back(request(i));
  Engine reference = engine();
  const Outcomes expected = run(reference, requests);

  AsyncEngine async(engine());
  std::vector<Listener> listeners(requests.size());
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = t * kEach; i < (t + 1) * kEach; ++i) {
        async.submit(requests[static_cast<std::size_t>(i)], listeners[static_cast<std::size_t>(i)].callback());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < listeners.size(); ++i) {
    EXPECT_EQ(listeners[i].wait(), FinishReason::kLength);
    EXPECT_EQ(listeners[i].tokens(), expected.at({static_cast<int>(i), 0}).tokens) << i;
  }
  async.drain_and_wait();
  EXPECT_EQ(async.stats().held_blocks, 0);
}

TEST_F(AsyncEngineTest, ErrorsOfSubmitAreThrownToTheCaller) {
  AsyncEngine async(engine());
  Request bad = request(1);
  bad.sampling.top_p = 7.0f;
  const EventCallback ignore = [](const TokenEvent&) {};
  EXPECT_THAT(error_of(ErrorCode::kInvalidArgument, [&] { async.submit(bad, ignore); }), HasSubstr("top_p"));
  EXPECT_THAT(error_of(ErrorCode::kInvalidArgument, [&] { async.submit(request(1), nullptr); }), HasSubstr("callback"));
  async.drain();
  EXPECT_THAT(error_of(ErrorCode::kUnavailable, [&] { async.submit(request(1), ignore); }), HasSubstr("draining"));
}

TEST_F(AsyncEngineTest, ConstructorRefusesByName) {
  EXPECT_THAT(error_of(ErrorCode::kInvalidArgument, [&] { AsyncEngine async(engine(), {.max_queued = 0}); }),
              HasSubstr("max_queued"));
  Engine busy = engine();
  busy.submit(request(1));
  EXPECT_THAT(error_of(ErrorCode::kInvalidArgument, [&] { AsyncEngine async(std::move(busy)); }), HasSubstr("open requests"));
}

TEST_F(AsyncEngineTest, ATimeoutCountsFromSubmit) {
  AsyncEngine async(engine());
  std::atomic<bool> is_blocked{false};
  async.submit(request(1, 1), [&](const TokenEvent&) {
    is_blocked = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  });
  while (!is_blocked) std::this_thread::yield();
  Request late = request(2, 1);
  late.timeout_us = 20'000;  // over before the engine's thread looks
  Listener listener;
  async.submit(late, listener.callback());
  EXPECT_EQ(listener.wait(), FinishReason::kDeadline);
  EXPECT_TRUE(listener.tokens().empty());
}

// Three requests end in one step; when the callback of the last comes, those before are gone.
TEST_F(AsyncEngineTest, CallbackIsDestroyedBeforeItsRequestHasLeft) {
  AsyncEngine async(engine());
  std::atomic<bool> is_blocked{false}, is_ready{false};
  async.submit(request(1, 1), [&](const TokenEvent&) {
    is_blocked = true;
    while (!is_ready) std::this_thread::yield();
  });
  while (!is_blocked) std::this_thread::yield();
  const auto held = std::make_shared<int>(0);
  long num_owners = 0;
  async.submit(request(2, 1), [held](const TokenEvent&) {});
  async.submit(request(3, 1), [held](const TokenEvent&) { throw std::runtime_error("user code"); });
  async.submit(request(4, 1), [&](const TokenEvent&) { num_owners = held.use_count(); });
  is_ready = true;
  async.drain_and_wait();
  EXPECT_EQ(num_owners, 1);
}

TEST_F(AsyncEngineTest, BackPressureRefusesAndRecovers) {
  AsyncEngine async(engine(), {.max_queued = 2});
  Listener a, b, c;
  std::atomic<bool> may_go_on{false};
  async.submit(request(1), [&, inner = a.callback()](const TokenEvent& event) {
    while (!may_go_on) std::this_thread::yield();
    inner(event);
  });
  async.submit(request(2), b.callback());
  try {
    async.submit(request(3), c.callback());
    ADD_FAILURE() << "a third request was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    EXPECT_THAT(error.what(), HasSubstr("max_queued"));
  }
  may_go_on = true;
  a.wait(), b.wait();
  for (int i = 0; i < 1000; ++i) {  // the callback runs a moment before the place is free
    try {
      async.submit(request(3), c.callback());
      break;
    } catch (const Error&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  EXPECT_EQ(c.wait(), FinishReason::kLength);
}

TEST_F(AsyncEngineTest, CancelReturnsAfterTheRequestHasLeft) {
  AsyncEngine async(engine());
  Listener cancelled, other;
  const RequestId id = async.submit(slow_request(), cancelled.callback());
  async.submit(request(2, 50), other.callback());
  EXPECT_TRUE(async.cancel(id));
  EXPECT_EQ(cancelled.wait(), FinishReason::kCancelled);
  EXPECT_FALSE(async.cancel(id));
  EXPECT_FALSE(async.cancel(987654));
  EXPECT_EQ(other.wait(), FinishReason::kLength);
}

TEST_F(AsyncEngineTest, CallbackMaySubmitAndCancel) {
  AsyncEngine async(engine());
  Listener second;
  std::atomic<RequestId> first_id{0};
  std::atomic<int> tokens{0};
  std::atomic<bool> ready{false};
  first_id = async.submit(request(1, 300), [&](const TokenEvent& event) {
    if (event.token < 0) return;
    while (!ready) std::this_thread::yield();
    if (++tokens == 3) {
      async.submit(request(2), second.callback());
      EXPECT_TRUE(async.cancel(first_id));
    }
  });
  ready = true;
  EXPECT_EQ(second.wait(), FinishReason::kLength);
  EXPECT_LT(tokens, 10);
}

TEST_F(AsyncEngineTest, ThrowingCallbackCancelsItsRequestOnly) {
  AsyncEngine async(engine());
  Listener other;
  std::atomic<int> calls{0};
  async.submit(request(1, 300), [&](const TokenEvent&) {
    ++calls;
    throw std::runtime_error("user code");
  });
  async.submit(request(2, 20), other.callback());
  EXPECT_EQ(other.wait(), FinishReason::kLength);
  async.drain_and_wait();
  EXPECT_EQ(calls, 1);
}

TEST_F(AsyncEngineTest, DestructorCancelsWhatIsOpen) {
  Listener listener;
  {
    AsyncEngine async(engine());
    async.submit(slow_request(), listener.callback());
  }
  EXPECT_EQ(listener.wait(), FinishReason::kCancelled);
}

}  // namespace
}  // namespace quire::test
