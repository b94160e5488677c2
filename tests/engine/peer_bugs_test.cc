// Faults that users of other engines reported, replayed here: one test each, named by its number in our collection. The report
// each number stands for is named above its test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>

#include "quire/error.h"
#include "tests/engine/feature_pairs.h"
#include "tests/engine/outcome.h"
#include "tests/support/tiny_model.h"

namespace quire::test {
namespace {

using ::testing::SizeIs;

class PeerBugs : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    path_ = std::filesystem::path(::testing::TempDir()) / "peer_bugs.gguf";
    write_gguf(tiny_model_spec("llama"), path_);
    setenv("QUIRE_KV_POISON", "1", 1);
  }
  static void TearDownTestSuite() {
    unsetenv("QUIRE_KV_POISON");
    std::filesystem::remove(path_);
  }

  static Engine engine(int num_blocks, int block_size = 16, int budget = 512) {
    return Engine(path_, {.num_threads = 1, .block_size = block_size, .num_blocks = num_blocks, .max_batched_tokens = budget});
  }
  static std::vector<TokenId> prompt(int length, int salt = 0) {
    std::vector<TokenId> tokens(static_cast<std::size_t>(length));
    for (int i = 0; i < length; ++i) tokens[static_cast<std::size_t>(i)] = (i * 7 + salt * 31 + 1) % tiny_vocab_size();
    return tokens;
  }
  static Request request(std::vector<TokenId> tokens, int max_tokens) {
    Request r;
    r.prompt = std::move(tokens);
    r.sampling.temperature = 0.0f;
    r.sampling.max_tokens = max_tokens;
    r.sampling.ignore_eos = true;
    r.sampling.logprobs = 3;
    return r;
  }

  static inline std::filesystem::path path_;
};

// vLLM PR 7753: a hit as long as the prompt recomputed a whole block, or fed an empty chunk.
TEST_F(PeerBugs, B010_FullPrefixHitWithChunksEqualsTheColdRun) {
  constexpr int kBlock = 16;
  for (const int length : {kBlock - 1, kBlock, kBlock + 1, 2 * kBlock}) {
    const Request r = request(prompt(length), 4);
    Engine cold = engine(100, kBlock);
    const Outcomes expected = run(cold, {r});
    for (const int chunk : {1, kBlock - 1, kBlock, kBlock + 1}) {
      Engine warm = engine(100, kBlock, chunk);
      EXPECT_EQ(run(warm, {r}, {.repeats = 3}), expected) << length << " tokens, chunks of " << chunk;
    }
  }
}

// TensorRT-LLM 2217: with reuse on, token ids beyond the vocabulary came out.
TEST_F(PeerBugs, B016_SharedPrefixesNeverYieldWildTokensOrNan) {
  Engine shared = engine(40, 8, 64);
  std::vector<Request> requests;
  for (int i = 0; i < 300; ++i) {
    std::vector<TokenId> tokens = prompt(8 * (i % 5), 1);
    const std::vector<TokenId> tail = prompt(1 + i % 13, i);
    tokens.insert(tokens.end(), tail.begin(), tail.end());
    Request r = request(std::move(tokens), 3);
    r.sampling.temperature = 1.0f;
    r.sampling.seed = i;
    requests.push_back(r);
  }
  for (const auto& [key, outcome] : run(shared, requests)) {
    EXPECT_EQ(outcome.finish_reason, FinishReason::kLength);
    for (const TokenId token : outcome.tokens) EXPECT_LT(token, shared.tokenizer().vocab_size());
    for (const std::uint32_t bits : outcome.logprob_bits) EXPECT_TRUE(std::isfinite(std::bit_cast<float>(bits)));
  }
  EXPECT_GT(shared.stats().cached_tokens, 0);
}

// lmdeploy 1744: prefix cache, a smaller KV type and many requests broke together only. Each request's answer alone is the
// measure.
TEST_F(PeerBugs, B017_EveryPairOfFeaturesTogether) {
  for (const Features& features : kFeaturePairs) {
    SCOPED_TRACE(features.describe());
    write_gguf(tiny_model_spec(features.windows ? "gemma3" : "llama"), path_);
    EngineOptions plain{.num_threads = 1, .kv_type = features.kv_type, .num_blocks = 3000, .prefix_cache = false};
    const std::vector<Request> requests = crowd(features);
    Engine together(path_, with(features, plain));
    EXPECT_EQ(run(together, requests), run_alone(path_, plain, requests));
    EXPECT_EQ(together.stats().cached_tokens > 0, features.prefix_cache);
    EXPECT_EQ(together.stats().held_blocks, 0);
  }
  write_gguf(tiny_model_spec("llama"), path_);
}

// vLLM 546, 787, 5578: many choices in a small pool stopped the engine.
TEST_F(PeerBugs, B034_FiftyChoicesInATinyPoolAllFinishUnchanged) {
  Request r = request(prompt(21), 9);
  r.sampling.temperature = 1.0f;
  r.sampling.seed = 5;
  r.sampling.n = 50;
  Engine large = engine(1000, 8);
  const Outcomes expected = run(large, {r});
  ASSERT_THAT(expected, SizeIs(50));
  Engine tiny = engine(7, 8);
  EXPECT_EQ(run(tiny, {r}), expected);
  EXPECT_GT(tiny.stats().num_preemptions, 0);
}

// vLLM PR 36752, inference-sim 1091: negative and doubled counters after preemption.
TEST_F(PeerBugs, B046_B047_CountersAddUpAfterPreemption) {
  Engine tight = engine(8, 8);  // two prompts fit, two answers do not
  std::int64_t received = 0;
  for (int i = 0; i < 12; ++i) tight.submit(request(prompt(20, i), 12));
  std::map<RequestId, Usage> usages;
  while (tight.has_work()) {
    for (const TokenEvent& event : tight.step()) {
      if (event.token >= 0) ++received;
      usages[event.request_id] = event.usage;
    }
  }
  const EngineStats stats = tight.stats();
  EXPECT_GT(stats.num_preemptions, 0);
  EXPECT_EQ(stats.generated_tokens, received);
  EXPECT_EQ(received, 12 * 12);
  for (const auto& [id, usage] : usages) {
    EXPECT_GE(usage.cached_tokens, 0);
    EXPECT_LE(usage.cached_tokens, usage.prompt_tokens);
    EXPECT_EQ(usage.completion_tokens, 12);
  }
}

// vLLM PR 2163: a prompt larger than the pool waited for ever.
TEST_F(PeerBugs, B050_PromptBeyondThePoolIsRefusedWithBothNumbers) {
  Engine pool = engine(11, 8);  // 10 blocks of 8
  try {
    pool.submit(request(prompt(81), 1));
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("81"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("80"));
  }
  const Outcome outcome = run(pool, {request(prompt(75), 100)}).at({0, 0});
  EXPECT_EQ(outcome.finish_reason, FinishReason::kLength);
}

// llama.cpp 27994: two sequences with equal positions in one pool disturbed each other.
TEST_F(PeerBugs, B088_EqualPositionsOfTwoSequencesDoNotMeet) {
  const std::vector<Request> both = {request(prompt(33, 1), 10), request(prompt(33, 2), 10)};
  const Outcomes alone = run_alone(path_, {.num_threads = 1, .num_blocks = 64}, both);
  Engine together = engine(64);
  EXPECT_EQ(run(together, both), alone);
}

// SGLang 34683: the third, cached run of a request differed from the first two.
TEST_F(PeerBugs, B089_ColdColdWarmAreBitEqual) {
  for (int i = 0; i < 10; ++i) {
    const Request r = request(prompt(17 + i * 5, i), 6);
    Engine a = engine(64), b = engine(64);
    const Outcomes cold = run(a, {r});
    EXPECT_EQ(run(b, {r}), cold);
    EXPECT_EQ(run(a, {r}), cold);
    EXPECT_GT(a.stats().cached_tokens, 0);
  }
}

// vLLM 51226: a seeded request was not reproducible beside an unseeded one.
TEST_F(PeerBugs, B091_SeededRequestIgnoresItsNeighbours) {
  Request seeded = request(prompt(9), 8);
  seeded.sampling.temperature = 1.2f;
  seeded.sampling.seed = 77;
  Engine solo = engine(128);
  const Outcome expected = run(solo, {seeded}).at({0, 0});
  Request unseeded = seeded;
  unseeded.sampling.seed.reset();
  for (int neighbours = 0; neighbours < 8; ++neighbours) {
    std::vector<Request> requests(static_cast<std::size_t>(neighbours), unseeded);
    const int place = neighbours / 2;
    requests.insert(requests.begin() + place, seeded);
    Engine shared = engine(128);
    EXPECT_EQ(run(shared, requests).at({place, 0}), expected);
  }
}

// tt-metal 53802: the same seed twice in one batch gave two answers.
TEST_F(PeerBugs, B092_SameSeedTwiceInOneBatchIsTheSame) {
  Request r = request(prompt(9), 8);
  r.sampling.temperature = 1.2f;
  r.sampling.seed = 3;
  Engine shared = engine(128);
  const Outcomes outcomes = run(shared, {r, r});
  EXPECT_EQ(outcomes.at({0, 0}), outcomes.at({1, 0}));
}

// TensorRT-LLM 12324: min_tokens counted the prompt, and with ignore_eos an id of -1 forbade the last token.
TEST_F(PeerBugs, B100_MinTokensWithIgnoreEosTouchesNothingElse) {
  Request plain = request(prompt(100), 8);
  Request with_minimum = plain;
  with_minimum.sampling.min_tokens = 8;
  Engine pool = engine(64);
  EXPECT_EQ(run(pool, {plain}), run(pool, {with_minimum}));
  EXPECT_THAT(run(pool, {with_minimum}).at({0, 0}).tokens, SizeIs(8));
}

// vLLM 4589: end tokens of the generation config ended benchmarks that ask to ignore them. A user's stop token still counts.
TEST_F(PeerBugs, B101_IgnoreEosRunsToMaxTokensAndAStopTokenStillStops) {
  Engine pool = engine(64);
  const TokenId end = pool.tokenizer().end_ids().front();
  Request r = request(prompt(3), 8);
  r.sampling.ignore_eos = false;
  r.sampling.logit_bias = {{end, 100.0f}};
  EXPECT_THAT(run(pool, {r}).at({0, 0}).tokens, SizeIs(1));
  r.sampling.ignore_eos = true;
  EXPECT_THAT(run(pool, {r}).at({0, 0}).tokens, SizeIs(8));
  r.sampling.stop_token_ids = {end};
  EXPECT_THAT(run(pool, {r}).at({0, 0}).tokens, SizeIs(1));
}

// vLLM 7283: an empty prompt ended the engine loop.
TEST_F(PeerBugs, B107_EmptyPromptIsRefusedAndTheEngineGoesOn) {
  Engine pool = engine(64);
  EXPECT_THROW(pool.submit(Request{}), Error);
  EXPECT_THAT(run(pool, {request(prompt(3), 2)}).at({0, 0}).tokens, SizeIs(2));
}

// vLLM 8268: prompt logprobs of cached positions were never computed.
TEST_F(PeerBugs, B109_PromptLogprobsDoNotDependOnThePrefixCache) {
  Request scored = request(prompt(33), 2);
  scored.sampling.prompt_logprobs = 2;
  const Request plain = request(prompt(33), 2);
  Engine first = engine(64);
  const Outcome cold = run(first, {scored}).at({0, 0});
  ASSERT_THAT(cold.prompt_logprob_bits, SizeIs(3 * 32));
  EXPECT_EQ(run(first, {scored}).at({0, 0}), cold);
  Engine second = engine(64);
  run(second, {plain});
  EXPECT_EQ(run(second, {scored}).at({0, 0}), cold);
}

// ik_llama.cpp 1929: cancelling a queued request cancelled the running one.
TEST_F(PeerBugs, B112_CancellingAQueuedRequestLeavesTheRunningOneAlone) {
  const Request r = request(prompt(10), 12);
  Engine solo = engine(64);
  const Outcome expected = run(solo, {r}).at({0, 0});
  Engine shared(path_, {.num_threads = 1, .num_blocks = 64, .max_running = 1});
  Outcomes outcomes;
  const RequestId running = shared.submit(r);
  collect(shared.step(), {{running, 0}}, outcomes);
  const RequestId queued = shared.submit(request(prompt(10, 4), 12));
  collect(shared.step(), {{running, 0}}, outcomes);
  EXPECT_TRUE(shared.cancel(queued));
  while (shared.has_work()) collect(shared.step(), {{running, 0}}, outcomes);
  EXPECT_EQ(outcomes.at({0, 0}), expected);
}

// gpt4all 3635: memory in proportion to a field of the request.
TEST_F(PeerBugs, B115_HugeLimitsAreClampedToTheContext) {
  Engine pool = engine(64);
  Request r = request(prompt(3), std::numeric_limits<int>::max());
  r.sampling.top_k = std::numeric_limits<int>::max();
  const Outcome outcome = run(pool, {r}).at({0, 0});
  EXPECT_EQ(outcome.finish_reason, FinishReason::kLength);
  EXPECT_EQ(static_cast<int>(outcome.tokens.size()), pool.max_context() - 3);
}

// CVE-2026-44223: a penalty together with another mode ended the process. Every pair of sampling parameters and engine modes.
TEST_F(PeerBugs, B118_EveryPairOfParametersRuns) {
  const std::vector<std::function<void(SamplingParams&)>> spices = {
      [](SamplingParams& s) { s.temperature = 0.7f; },
      [](SamplingParams& s) { s.top_k = 3; },
      [](SamplingParams& s) { s.top_p = 0.5f; },
      [](SamplingParams& s) { s.min_p = 0.2f; },
      [](SamplingParams& s) { s.typical_p = 0.5f; },
      [](SamplingParams& s) { s.repetition_penalty = 1.5f; },
      [](SamplingParams& s) { s.presence_penalty = 2.0f, s.frequency_penalty = -2.0f; },
      [](SamplingParams& s) {
        s.logit_bias = {{3, -INFINITY}, {4, 5.0f}};
      },
      [](SamplingParams& s) { s.n = 2; },
      [](SamplingParams& s) { s.best_of = 3; },
      [](SamplingParams& s) { s.logprobs = 20; },
      [](SamplingParams& s) { s.prompt_logprobs = 20; },
      [](SamplingParams& s) { s.min_tokens = 3; },
      [](SamplingParams& s) {
        s.stop = {"a", "bc"};
      },
      [](SamplingParams& s) {
        s.stop_token_ids = {9, 8};
      },
      [](SamplingParams& s) { s.token_mask = [](auto, std::span<std::uint32_t> mask) { mask[0] = 0xff; }; },
  };
  for (const bool cache : {false, true}) {
    for (const int budget : {3, 64}) {
      Engine pool(path_,
                  {.num_threads = 1, .block_size = 8, .num_blocks = 20, .max_batched_tokens = budget, .prefix_cache = cache});
      std::vector<Request> requests;
      for (const auto& a : spices) {
        for (const auto& b : spices) {
          Request r = request(prompt(11), 4);
          r.sampling.seed = 1;
          a(r.sampling);
          b(r.sampling);
          requests.push_back(r);
        }
      }
      for (const auto& [key, outcome] : run(pool, requests)) EXPECT_NE(outcome.finish_reason, FinishReason::kError);
    }
  }
}

}  // namespace
}  // namespace quire::test
