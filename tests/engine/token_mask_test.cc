// What a token_mask may do to its engine: look. Anything else is refused and ends its own choice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <thread>

#include "quire/async_engine.h"
#include "quire/engine.h"
#include "quire/error.h"
#include "tests/support/tiny_model.h"

namespace quire::test {
namespace {

using ::testing::HasSubstr;

class TokenMaskTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    path_ = std::filesystem::path(::testing::TempDir()) / "token_mask_test.gguf";
    write_gguf(tiny_model_spec("llama"), path_);
  }
  static void TearDownTestSuite() { std::filesystem::remove(path_); }

  static Engine engine() { return Engine(path_, {.num_threads = 1, .block_size = 8, .num_blocks = 64}); }
  static Request request() {
    Request r;
    r.prompt = {1, 2, 3};
    r.sampling.seed = 1;
    r.sampling.max_tokens = 4;
    r.sampling.ignore_eos = true;
    return r;
  }
  static Request masked(std::function<void()> act) {
    Request r = request();
    r.sampling.token_mask = [act](std::span<const TokenId>, std::span<std::uint32_t>) { act(); };
    return r;
  }

  static inline std::filesystem::path path_;
};

TEST_F(TokenMaskTest, MayNotStepSubmitOrCancel) {
  Engine e = engine();
  RequestId other = 0;
  const std::map<std::string, std::function<void()>> acts = {
      {"Engine::step()", [&] { e.step(); }},
      {"Engine::submit()", [&] { e.submit(request()); }},
      {"Engine::cancel()", [&] { e.cancel(other); }},
  };
  for (const auto& [name, act] : acts) {
    other = e.submit(request());
    const RequestId id = e.submit(masked(act));
    std::map<RequestId, TokenEvent> last;
    while (e.has_work()) {
      for (const TokenEvent& event : e.step()) last[event.request_id] = event;
    }
    EXPECT_EQ(last.at(id).finish_reason, FinishReason::kError);
    EXPECT_THAT(last.at(id).error, HasSubstr(name));
    EXPECT_EQ(last.at(other).finish_reason, FinishReason::kLength);
    EXPECT_EQ(last.at(other).usage.completion_tokens, 4);
    EXPECT_EQ(e.stats().held_blocks, 0);
  }
  EXPECT_NO_THROW(e.submit(request())) << "outside a step";
}

TEST_F(TokenMaskTest, MayLook) {
  Engine e = engine();
  int num_running = 0;
  e.submit(masked([&] {
    num_running = e.stats().num_running;
    e.check(request());
    EXPECT_TRUE(e.has_work());
  }));
  TokenEvent last;
  while (e.has_work()) {
    for (const TokenEvent& event : e.step()) last = event;
  }
  EXPECT_EQ(last.finish_reason, FinishReason::kLength);
  EXPECT_EQ(num_running, 1);
}

TEST_F(TokenMaskTest, MaySubmitAndCancelOnAnAsyncEngine) {
  AsyncEngine async(engine());
  std::atomic<RequestId> id = 0;
  FinishReason masked_reason{}, other_reason{};
  std::atomic<bool> has_acted = false;
  const auto act = [&] {
    while (id == 0) std::this_thread::yield();
    if (has_acted) return;
    async.submit(request(), [&](const TokenEvent& event) { other_reason = event.finish_reason; });
    EXPECT_TRUE(async.cancel(id));
    EXPECT_THROW(async.drain_and_wait(), Error);
    has_acted = true;
  };
  id = async.submit(masked(act), [&](const TokenEvent& event) { masked_reason = event.finish_reason; });
  while (!has_acted) std::this_thread::yield();
  async.drain_and_wait();
  EXPECT_EQ(masked_reason, FinishReason::kCancelled);
  EXPECT_EQ(other_reason, FinishReason::kLength);
}

}  // namespace
}  // namespace quire::test
