// Prompt logprobs: what becomes of them when a choice ends early, is preempted, or its logits are no numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>

#include "quire/engine.h"
#include "tests/support/tiny_model.h"

namespace quire::test {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

// A window of 4 in both of two layers: a row sees at most 6 tokens back, so what a token spoils is clean again 7 tokens later.
constexpr int kReach = 6;
constexpr TokenId kSpoilt = 100;  // its embedding is NaN

TinyModelSpec spec() {
  TinyModelSpec s = tiny_model_spec("llama");
  s.num_layers = 2;
  s.window = 4;
  s.weight_type = DType::kF32;
  s.tied = false;
  return s;
}

void spoil_embedding(const std::filesystem::path& path) {
  const std::vector<FloatTensor> weights = tiny_weights(spec());
  const auto table =
      std::find_if(weights.begin(), weights.end(), [](const auto& t) { return t.gguf_name == "token_embd.weight"; });
  ASSERT_NE(table, weights.end());
  const auto width = static_cast<std::size_t>(table->columns);
  std::string row(width * sizeof(float), '\0');
  std::memcpy(row.data(), table->values.data() + kSpoilt * width, row.size());
  std::ifstream in(path, std::ios::binary);
  std::string file{std::istreambuf_iterator<char>(in), {}};
  const std::size_t place = file.find(row);
  ASSERT_NE(place, std::string::npos);
  const std::vector<float> nans(width, std::numeric_limits<float>::quiet_NaN());
  std::memcpy(file.data() + place, nans.data(), row.size());
  std::ofstream(path, std::ios::binary) << file;
}

class PromptLogprobs : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    path_ = std::filesystem::path(::testing::TempDir()) / "prompt_logprobs_test.gguf";
    write_gguf(spec(), path_);
    spoil_embedding(path_);
  }
  static void TearDownTestSuite() { std::filesystem::remove(path_); }

  static Engine engine(int budget = 512) {
    return Engine(path_, {.num_threads = 1, .block_size = 8, .num_blocks = 64, .max_batched_tokens = budget});
  }
  static Request request() {
    Request r;
    for (TokenId token = 10; token < 30; ++token) r.prompt.push_back(token);
    r.sampling.temperature = 0.0f;
    r.sampling.max_tokens = 3;
    r.sampling.ignore_eos = true;
    r.sampling.prompt_logprobs = 1;
    return r;
  }
  // The events of each choice.
  static std::map<int, std::vector<TokenEvent>> events_of(Engine& e, const Request& r) {
    std::map<int, std::vector<TokenEvent>> events;
    e.submit(r);
    while (e.has_work()) {
      for (const TokenEvent& event : e.step()) events[event.index].push_back(event);
    }
    return events;
  }

  static inline std::filesystem::path path_;
};

TEST_F(PromptLogprobs, ANanAmongThemIsAnErrorAndNoNumber) {
  Request r = request();
  r.prompt[2] = kSpoilt;
  ASSERT_GT(static_cast<int>(r.prompt.size()), 2 + kReach + 1) << "the row that samples must be clean";
  r.sampling.n = 2;
  for (const int budget : {512, 5, 1}) {
    Engine e = engine(budget);
    const auto events = events_of(e, r);
    const std::vector<TokenEvent>& scored = events.at(0);
    ASSERT_THAT(scored, SizeIs(1));
    EXPECT_EQ(scored[0].finish_reason, FinishReason::kError);
    EXPECT_THAT(scored[0].error, HasSubstr("prompt_logprobs: the logits of prompt position 3 hold a NaN"));
    EXPECT_THAT(scored[0].prompt_logprobs, SizeIs(2)) << "those before it";
    EXPECT_EQ(events.at(1).back().finish_reason, FinishReason::kLength) << "the other choice asked for none";
    EXPECT_EQ(e.stats().held_blocks, 0);
  }
  r.sampling.prompt_logprobs.reset();
  Engine e = engine();
  EXPECT_EQ(events_of(e, r).at(0).back().finish_reason, FinishReason::kLength);
}

TEST_F(PromptLogprobs, ComeWithTheFirstEventEvenIfItHasNoToken) {
  Request r = request();
  r.sampling.token_mask = [](std::span<const TokenId>, std::span<std::uint32_t>) { throw std::runtime_error("grammar broke"); };
  for (const int best_of : {0, 2}) {
    r.sampling.best_of = best_of;
    Engine e = engine();
    const auto events = events_of(e, r).at(0);
    ASSERT_THAT(events, SizeIs(1));
    EXPECT_EQ(events[0].finish_reason, FinishReason::kError);
    EXPECT_THAT(events[0].prompt_logprobs, SizeIs(r.prompt.size() - 1));
  }
}

TEST_F(PromptLogprobs, OfACancelledRequestAreThoseComputed) {
  Engine e = engine(8);
  const RequestId id = e.submit(request());
  EXPECT_TRUE(e.step().empty());
  e.cancel(id);
  const std::vector<TokenEvent> events = e.step();
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_THAT(events[0].prompt_logprobs, SizeIs(8));
}

TEST_F(PromptLogprobs, ComeOnce) {
  Engine e = engine(8);
  std::size_t count = 0;
  const std::vector<TokenEvent> events = events_of(e, request()).at(0);
  for (const TokenEvent& event : events) count += event.prompt_logprobs.size();
  EXPECT_EQ(count, request().prompt.size() - 1);
}

}  // namespace
}  // namespace quire::test
