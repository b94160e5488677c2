#include "quire/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <set>

#include "quire/error.h"
#include "tests/engine/outcome.h"
#include "tests/support/expect_error.h"
#include "tests/support/tiny_model.h"

namespace quire::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class EngineTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    path_ = std::filesystem::path(::testing::TempDir()) / "engine_test.gguf";
    write_gguf(tiny_model_spec("llama"), path_);
  }
  static void TearDownTestSuite() { std::filesystem::remove(path_); }

  static EngineOptions small() {
    EngineOptions options;
    options.num_blocks = 64;
    options.block_size = 8;
    options.num_threads = 1;
    return options;
  }

  static Request request(std::vector<TokenId> prompt = {1, 2, 3, 4, 5}, int max_tokens = 8) {
    Request r;
    r.prompt = std::move(prompt);
    r.sampling.temperature = 0.0f;
    r.sampling.max_tokens = max_tokens;
    r.sampling.ignore_eos = true;
    return r;
  }

  static Outcome run_one(Engine& engine, const Request& r) { return run(engine, {r}).at({0, 0}); }

  static inline std::filesystem::path path_;
};

TEST_F(EngineTest, GreedyIsRepeatableAndEndsByLength) {
  Engine engine(path_, small());
  const Outcome first = run_one(engine, request());
  EXPECT_THAT(first.tokens, SizeIs(8));
  EXPECT_EQ(first.finish_reason, FinishReason::kLength);
  EXPECT_EQ(run_one(engine, request()), first);
}

TEST_F(EngineTest, UsageCountsPromptCompletionAndCachedTokens) {
  Engine engine(path_, small());
  std::vector<TokenId> prompt(20, 7);
  for (const int cached : {0, 16}) {  // 20 tokens, blocks of 8: two full blocks are found again
    engine.submit(request(prompt, 3));
    Usage usage;
    while (engine.has_work()) {
      for (const TokenEvent& event : engine.step()) usage = event.usage;
    }
    EXPECT_EQ(usage.prompt_tokens, 20);
    EXPECT_EQ(usage.completion_tokens, 3);
    EXPECT_EQ(usage.cached_tokens, cached);
  }
  EXPECT_EQ(engine.stats().cached_tokens, 16);
  EXPECT_EQ(engine.stats().generated_tokens, 6);
}

TEST_F(EngineTest, SaltsDoNotSharePrefixes) {
  Engine engine(path_, small());
  Request r = request(std::vector<TokenId>(20, 7), 1);
  r.cache_salt = "a";
  run_one(engine, r);
  r.cache_salt = "b";
  run_one(engine, r);
  EXPECT_EQ(engine.stats().cached_tokens, 0);
  run_one(engine, r);
  EXPECT_EQ(engine.stats().cached_tokens, 16);
}

TEST_F(EngineTest, StopTokenEndsTheChoiceAndIsNoText) {
  Engine engine(path_, small());
  const Outcome free_run = run_one(engine, request());
  Request r = request();
  r.sampling.stop_token_ids = {free_run.tokens[3]};
  std::size_t first = 0;
  while (free_run.tokens[first] != free_run.tokens[3]) ++first;
  const Outcome stopped = run_one(engine, r);
  EXPECT_EQ(stopped.finish_reason, FinishReason::kStop);
  EXPECT_THAT(stopped.tokens, SizeIs(first + 1));
  const std::vector<TokenId> before(free_run.tokens.begin(), free_run.tokens.begin() + static_cast<std::ptrdiff_t>(first));
  EXPECT_EQ(stopped.text, engine.tokenizer().decode(before));
}

TEST_F(EngineTest, StopStringEndsTheChoiceBeforeItsText) {
  Engine engine(path_, small());
  Request r = request({1, 2, 3}, 24);
  r.sampling.temperature = 5.0f;
  r.sampling.seed = 1;
  r.sampling.token_mask = [&](std::span<const TokenId>, std::span<std::uint32_t> mask) {  // letters, for a readable text
    std::fill(mask.begin(), mask.end(), 0u);
    for (char letter = 'a'; letter <= 'z'; ++letter) {
      const auto id = static_cast<std::uint32_t>(engine.tokenizer().token_id(std::string(1, letter)));
      mask[id / 32] |= 1u << (id % 32);
    }
  };
  const std::string whole = run_one(engine, r).text;
  ASSERT_EQ(whole.size(), 24u);
  r.sampling.stop = {whole.substr(4, 2)};
  const Outcome stopped = run_one(engine, r);
  EXPECT_EQ(stopped.finish_reason, FinishReason::kStop);
  EXPECT_EQ(stopped.text, whole.substr(0, whole.find(r.sampling.stop[0])));
  EXPECT_EQ(engine.stats().held_blocks, 0);
  EXPECT_FALSE(engine.has_work());
}

TEST_F(EngineTest, MinTokensHoldsBackEndsOfEveryKind) {
  Engine engine(path_, small());
  const Outcome free_run = run_one(engine, request({1, 2, 3}, 16));
  Request r = request({1, 2, 3}, 16);
  r.sampling.stop_token_ids = {free_run.tokens[0]};
  r.sampling.min_tokens = 5;
  const Outcome held = run_one(engine, r);
  EXPECT_GE(held.tokens.size(), 5u);
  for (int i = 0; i < 5; ++i) EXPECT_NE(held.tokens[static_cast<std::size_t>(i)], free_run.tokens[0]);
}

TEST_F(EngineTest, ChoicesDifferAndAreReproducible) {
  Engine engine(path_, small());
  Request r = request({5, 6, 7, 8, 9, 10, 11, 12, 13}, 6);
  r.sampling.temperature = 1.5f;
  r.sampling.seed = 42;
  r.sampling.n = 4;
  const Outcomes first = run(engine, {r});
  ASSERT_THAT(first, SizeIs(4));
  std::set<std::vector<TokenId>> distinct;
  for (const auto& [key, outcome] : first) distinct.insert(outcome.tokens);
  EXPECT_THAT(distinct, SizeIs(4));
  EXPECT_EQ(run(engine, {r}), first);
  r.sampling.n = 1;  // choice 0 does not depend on how many there are
  EXPECT_EQ(run(engine, {r}).at({0, 0}), first.at({0, 0}));
}

TEST_F(EngineTest, BestOfReturnsTheLikeliestChoices) {
  Engine engine(path_, small());
  Request r = request({5, 6, 7}, 5);
  r.sampling.temperature = 2.0f;
  r.sampling.seed = 9;
  r.sampling.logprobs = 0;
  r.sampling.n = 4;
  const auto mean = [](const Outcome& outcome) {
    double sum = 0;
    for (const std::uint32_t bits : outcome.logprob_bits) sum += std::bit_cast<float>(bits);
    return sum / static_cast<double>(outcome.tokens.size());
  };
  std::vector<double> means;
  for (const auto& [key, outcome] : run(engine, {r})) means.push_back(mean(outcome));
  std::sort(means.rbegin(), means.rend());
  r.sampling.n = 2;
  r.sampling.best_of = 4;
  const Outcomes best = run(engine, {r});
  ASSERT_THAT(best, SizeIs(2));
  EXPECT_DOUBLE_EQ(mean(best.at({0, 0})), means[0]);
  EXPECT_DOUBLE_EQ(mean(best.at({0, 1})), means[1]);
}

TEST_F(EngineTest, PromptLogprobsAgreeWithTeacherForcing) {
  Engine engine(path_, small());
  Request generate = request({1, 2, 3, 4, 5, 6, 7, 8, 9}, 12);
  generate.sampling.logprobs = 2;
  const Outcome generated = run_one(engine, generate);
  Request score = request(generate.prompt, 1);
  score.prompt.insert(score.prompt.end(), generated.tokens.begin(), generated.tokens.end());
  score.sampling.prompt_logprobs = 2;
  for (int round = 0; round < 2; ++round) {  // cold, and with a warm prefix cache
    const Outcome scored = run_one(engine, score);
    ASSERT_THAT(scored.prompt_logprob_bits, SizeIs(3 * (score.prompt.size() - 1)));
    const std::vector<std::uint32_t> tail(scored.prompt_logprob_bits.end() - 3 * 12, scored.prompt_logprob_bits.end());
    EXPECT_EQ(tail, generated.logprob_bits);
  }
}

TEST_F(EngineTest, PromptLogprobsSurviveAPreemption) {
  EngineOptions options = small();
  options.num_blocks = 8;  // two prompts fit, two answers do not
  Request first = request(std::vector<TokenId>(20, 3), 12);
  Request scored = request(std::vector<TokenId>(20, 5), 12);  // the later one is the victim
  scored.sampling.prompt_logprobs = 1;
  Engine roomy(path_, small());
  const Outcomes expected = run(roomy, {first, scored});
  Engine tight(path_, options);
  EXPECT_EQ(run(tight, {first, scored}), expected);
  EXPECT_GT(tight.stats().num_preemptions, 0);
}

TEST_F(EngineTest, TokenMaskIsObeyedAndItsFailureEndsOnlyItsRequest) {
  Engine engine(path_, small());
  Request masked = request();
  masked.sampling.token_mask = [](std::span<const TokenId> generated, std::span<std::uint32_t> mask) {
    for (std::uint32_t& word : mask) word = 0;
    const auto token = 10 + generated.size();
    mask[token / 32] |= 1u << (token % 32);
  };
  EXPECT_THAT(run_one(engine, masked).tokens, ::testing::ElementsAre(10, 11, 12, 13, 14, 15, 16, 17));

  Request throws = request();
  throws.sampling.token_mask = [](std::span<const TokenId> generated, std::span<std::uint32_t>) {
    if (generated.size() == 2) throw std::runtime_error("grammar broke");
  };
  Request empty = request();
  empty.sampling.token_mask = [](std::span<const TokenId>, std::span<std::uint32_t> mask) {
    for (std::uint32_t& word : mask) word = 0;
  };
  const RequestId good_id = engine.submit(request());
  const RequestId throws_id = engine.submit(throws);
  const RequestId empty_id = engine.submit(empty);
  std::map<RequestId, TokenEvent> last;
  while (engine.has_work()) {
    for (const TokenEvent& event : engine.step()) last[event.request_id] = event;
  }
  EXPECT_EQ(last[good_id].finish_reason, FinishReason::kLength);
  EXPECT_EQ(last[throws_id].finish_reason, FinishReason::kError);
  EXPECT_THAT(last[throws_id].error, HasSubstr("grammar broke"));
  EXPECT_EQ(last[throws_id].usage.completion_tokens, 2);
  EXPECT_EQ(last[empty_id].finish_reason, FinishReason::kError);
  EXPECT_THAT(last[empty_id].error, HasSubstr("masked"));
  EXPECT_EQ(engine.stats().held_blocks, 0);
}

TEST_F(EngineTest, CancelEndsAtAnyMoment) {
  for (int when = 0; when < 6; ++when) {
    Engine engine(path_, small());
    const RequestId id = engine.submit(request(std::vector<TokenId>(30, 3), 20));
    for (int i = 0; i < when; ++i) engine.step();
    EXPECT_TRUE(engine.cancel(id));
    std::vector<TokenEvent> events;
    while (engine.has_work()) events = engine.step();
    ASSERT_FALSE(events.empty());
    EXPECT_EQ(events.back().finish_reason, FinishReason::kCancelled);
    EXPECT_FALSE(engine.cancel(id));
    EXPECT_EQ(engine.stats().held_blocks, 0);
  }
  Engine engine(path_, small());
  EXPECT_FALSE(engine.cancel(12345));
}

TEST_F(EngineTest, TimeoutEndsTheRequest) {
  Engine engine(path_, small());
  Request r = request({1, 2, 3}, 100);
  r.timeout_us = 0;
  engine.submit(r);
  std::vector<TokenEvent> events;
  while (engine.has_work()) events = engine.step();
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].finish_reason, FinishReason::kDeadline);
}

TEST_F(EngineTest, ATimeoutBeyondTheClockIsNone) {
  Engine engine(path_, small());
  Request r = request();
  r.timeout_us = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(run_one(engine, r).finish_reason, FinishReason::kLength);
}

TEST_F(EngineTest, BiasOfMinusInfinityForbidsWhateverElseIsAdded) {
  Engine engine(path_, small());
  const TokenId likeliest = run_one(engine, request()).tokens[0];
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const auto& biases : std::vector<std::vector<float>>{{-kInf, 3e38f}, {3e38f, 3e38f, -kInf}}) {
    Request r = request();
    for (const float bias : biases) r.sampling.logit_bias.emplace_back(likeliest, bias);
    const Outcome outcome = run_one(engine, r);
    EXPECT_EQ(outcome.finish_reason, FinishReason::kLength);
    EXPECT_THAT(outcome.tokens, ::testing::Not(::testing::Contains(likeliest)));
  }
}

TEST_F(EngineTest, TheLongestContextOfAFileIsServed) {
  const auto path = std::filesystem::path(::testing::TempDir()) / "long_context.gguf";
  TinyModelSpec spec = tiny_model_spec("llama");
  spec.max_context = std::numeric_limits<int>::max();
  write_gguf(spec, path);
  Engine engine(path, small());
  EXPECT_THAT(run_one(engine, request()).tokens, SizeIs(8));
}

TEST_F(EngineTest, DrainRefusesNewRequestsAndFinishesTheOld) {
  Engine engine(path_, small());
  engine.submit(request());
  engine.drain();
  EXPECT_THAT(error_of(ErrorCode::kUnavailable, [&] { engine.submit(request()); }), HasSubstr("draining"));
  int tokens = 0;
  while (engine.has_work()) tokens += static_cast<int>(engine.step().size());
  EXPECT_EQ(tokens, 8);
}

TEST_F(EngineTest, TwoEnginesInOneProcessDoNotDisturbEachOther) {
  Engine a(path_, small());
  const Outcome alone = run_one(a, request());
  Engine b(path_, small());
  a.submit(request());
  b.submit(request());
  std::vector<TokenId> tokens_a, tokens_b;
  while (a.has_work() || b.has_work()) {
    for (const TokenEvent& event : a.step()) tokens_a.push_back(event.token);
    for (const TokenEvent& event : b.step()) tokens_b.push_back(event.token);
  }
  EXPECT_EQ(tokens_a, alone.tokens);
  EXPECT_EQ(tokens_b, alone.tokens);
}

TEST_F(EngineTest, ContextEndsTheAnswer) {
  EngineOptions options = small();
  options.max_context = 32;
  Engine engine(path_, options);
  const Outcome outcome = run_one(engine, request(std::vector<TokenId>(20, 4), 1000));
  EXPECT_EQ(outcome.finish_reason, FinishReason::kLength);
  EXPECT_THAT(outcome.tokens, SizeIs(12));
  EXPECT_THAT(error_of(ErrorCode::kInvalidArgument, [&] { engine.submit(request(std::vector<TokenId>(32, 4))); }),
              HasSubstr("32"));
}

TEST_F(EngineTest, BadFieldsAreRefusedByName) {
  Engine engine(path_, small());
  const Outcome before = run_one(engine, request());
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  struct Case {
    const char* field;
    std::function<void(Request&)> spoil;
  };
  const std::vector<Case> cases = {
      {"prompt", [](Request& r) { r.prompt = {}; }},
      {"prompt[1]",
       [](Request& r) {
         r.prompt = {1, -1};
       }},
      {"prompt[0]", [&](Request& r) { r.prompt = {engine.vocab_size()}; }},
      {"temperature", [&](Request& r) { r.sampling.temperature = kNan; }},
      {"temperature", [](Request& r) { r.sampling.temperature = -0.1f; }},
      {"temperature", [&](Request& r) { r.sampling.temperature = kInf; }},
      {"top_k", [](Request& r) { r.sampling.top_k = -1; }},
      {"top_p", [](Request& r) { r.sampling.top_p = 0.0f; }},
      {"top_p", [](Request& r) { r.sampling.top_p = 1.01f; }},
      {"min_p", [&](Request& r) { r.sampling.min_p = kNan; }},
      {"typical_p", [](Request& r) { r.sampling.typical_p = 0.0f; }},
      {"repetition_penalty", [](Request& r) { r.sampling.repetition_penalty = 0.0f; }},
      {"presence_penalty", [](Request& r) { r.sampling.presence_penalty = 2.5f; }},
      {"frequency_penalty", [&](Request& r) { r.sampling.frequency_penalty = -kInf; }},
      {"logit_bias",
       [](Request& r) {
         r.sampling.logit_bias = {{-3, 1.0f}};
       }},
      {"logit_bias",
       [](Request& r) {
         r.sampling.logit_bias = {{3, std::numeric_limits<float>::quiet_NaN()}};
       }},
      {"logit_bias",
       [](Request& r) {
         r.sampling.logit_bias.assign(2000, {3, 1.0f});
       }},
      {"n", [](Request& r) { r.sampling.n = 0; }},
      {"n", [](Request& r) { r.sampling.n = 1'000'000; }},
      {"best_of", [](Request& r) { r.sampling.n = 3, r.sampling.best_of = 2; }},
      {"logprobs", [](Request& r) { r.sampling.logprobs = 21; }},
      {"prompt_logprobs", [](Request& r) { r.sampling.prompt_logprobs = -1; }},
      {"max_tokens", [](Request& r) { r.sampling.max_tokens = 0; }},
      {"min_tokens", [](Request& r) { r.sampling.min_tokens = 9; }},
      {"stop_token_ids", [&](Request& r) { r.sampling.stop_token_ids = {engine.vocab_size()}; }},
      {"stop_token_ids", [](Request& r) { r.sampling.stop_token_ids = {-1}; }},
      {"stop", [](Request& r) { r.sampling.stop = {""}; }},
      {"stop", [](Request& r) { r.sampling.stop.assign(100'000, "x"); }},
      {"timeout_us", [](Request& r) { r.timeout_us = -1; }},
      {"prompt", [](Request& r) { r.prompt.assign(600, 1); }},  // 63 blocks of 8 hold 504 tokens
  };
  for (const Case& c : cases) {
    Request r = request();
    c.spoil(r);
    EXPECT_THAT(error_of(ErrorCode::kInvalidArgument, [&] { engine.submit(r); }), HasSubstr(c.field));
  }
  EXPECT_FALSE(engine.has_work());
  EXPECT_EQ(run_one(engine, request()), before) << "a refused request left something behind";
}

TEST_F(EngineTest, BadOptionsAreRefusedByName) {
  struct Case {
    const char* field;
    std::function<void(EngineOptions&)> spoil;
  };
  const std::vector<Case> cases = {
      {"block_size", [](EngineOptions& o) { o.block_size = 12; }},
      {"block_size", [](EngineOptions& o) { o.block_size = 0; }},
      {"num_blocks", [](EngineOptions& o) { o.num_blocks = 1; }},
      {"num_blocks", [](EngineOptions& o) { o.num_blocks = -5; }},
      {"kv_cache_bytes", [](EngineOptions& o) { o.num_blocks = 0, o.kv_cache_bytes = 10; }},
      {"max_context", [](EngineOptions& o) { o.max_context = 1 << 30; }},
      {"max_batched_tokens", [](EngineOptions& o) { o.max_batched_tokens = 0; }},
      {"max_step_ms", [](EngineOptions& o) { o.max_step_ms = -1; }},
      {"max_running", [](EngineOptions& o) { o.max_running = -1; }},
      {"num_threads", [](EngineOptions& o) { o.num_threads = -1; }},
      {"kv_type", [](EngineOptions& o) { o.kv_type = static_cast<KvType>(9); }},
  };
  for (const Case& c : cases) {
    EngineOptions options = small();
    c.spoil(options);
    EXPECT_THAT(error_of(ErrorCode::kInvalidArgument, [&] { Engine engine(path_, options); }), HasSubstr(c.field));
  }
  error_of(ErrorCode::kNotFound, [] { Engine engine("/no/such/model.gguf"); });
  EXPECT_EQ(error_of(ErrorCode::kInvalidArgument, [] { Engine engine(""); }), "the path of the model is empty");
  // Before the model is looked at.
  EXPECT_THAT(error_of(ErrorCode::kInvalidArgument, [] { Engine engine("/no/such/model.gguf", {.block_size = 12}); }),
              HasSubstr("block_size"));
  EngineOptions cuda = small();
  cuda.device = {DeviceKind::kCuda, 0};
  error_of(ErrorCode::kUnsupported, [&] { Engine engine(path_, cuda); });
}

TEST_F(EngineTest, OptionsTellWhatWasChosen) {
  EngineOptions options;
  options.kv_cache_bytes = 1 << 20;
  const Engine by_bytes(path_, options);
  EXPECT_GT(by_bytes.options().num_threads, 0);
  EXPECT_EQ(by_bytes.options().max_context, 256);
  EXPECT_LE(by_bytes.options().kv_cache_bytes, 1 << 20);
  EXPECT_EQ(by_bytes.options().kv_cache_bytes, by_bytes.stats().kv_bytes);
  EXPECT_EQ(by_bytes.options().num_blocks, by_bytes.stats().total_blocks + 1);
  options.num_blocks = 20;  // goes before kv_cache_bytes
  options.num_threads = 1;
  const Engine by_blocks(path_, options);
  EXPECT_EQ(by_blocks.options().num_blocks, 20);
  EXPECT_EQ(by_blocks.stats().total_blocks, 19);
  EXPECT_EQ(by_blocks.options().kv_cache_bytes, by_blocks.stats().kv_bytes);
  EXPECT_EQ(by_blocks.options().num_threads, 1);
}

TEST_F(EngineTest, AStepLimitCutsPromptsFinerThanBlocks) {
  EngineOptions options = small();
  options.max_step_ms = 100;
  options.block_size = 256;
  EXPECT_EQ(Engine(path_, options).stats().prefill_limit, 32);  // nothing is known yet
  options.max_batched_tokens = 10;
  EXPECT_EQ(Engine(path_, options).stats().prefill_limit, 10);
}

TEST_F(EngineTest, ErrorsOfKvCacheBytesSpeakOfBytes) {
  EngineOptions options = small();
  options.num_blocks = 0;
  options.kv_cache_bytes = 1000;
  EXPECT_THAT(error_of(ErrorCode::kInvalidArgument, [&] { Engine engine(path_, options); }),
              AllOf(HasSubstr("kv_cache_bytes is 1000, less than"), HasSubstr("bytes that this model needs")));
  options.kv_cache_bytes = std::int64_t{1} << 60;
  EXPECT_THAT(error_of(ErrorCode::kInvalidArgument, [&] { Engine engine(path_, options); }), HasSubstr("kv_cache_bytes"));
  options.num_blocks = std::numeric_limits<std::int32_t>::max();  // more than the machine has, and an Error
  options.block_size = 256;
  EXPECT_THAT(error_of(ErrorCode::kOutOfMemory, [&] { Engine engine(path_, options); }), HasSubstr("bytes"));
}

TEST_F(EngineTest, KvTypesServeAlike) {
  for (const KvType type : {KvType::kF16, KvType::kBF16, KvType::kF32}) {
    EngineOptions options = small();
    options.kv_type = type;
    Engine engine(path_, options);
    EXPECT_THAT(run_one(engine, request()).tokens, SizeIs(8));
  }
}

TEST_F(EngineTest, StatsAddUpAfterEveryStep) {
  EngineOptions options = small();
  options.num_blocks = 14;
  Engine engine(path_, options);
  for (const Request& r : mixed_requests(tiny_vocab_size(), 60, 10)) engine.submit(r);
  while (engine.has_work()) {
    engine.step();
    const EngineStats stats = engine.stats();
    ASSERT_EQ(stats.free_blocks + stats.cached_blocks + stats.held_blocks, stats.total_blocks);
    ASSERT_EQ(stats.total_blocks, 13);
    ASSERT_LE(stats.written_token_slots, stats.held_token_slots);
  }
  EXPECT_GT(engine.stats().num_preemptions, 0);
}

}  // namespace
}  // namespace quire::test
