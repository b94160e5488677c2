// What a run is made of before it runs: arrivals, lengths, traces, prompts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "benchmarks/serving/prompt_maker.h"
#include "benchmarks/serving/seeded_random.h"
#include "benchmarks/serving/workload.h"
#include "tests/support/expect_error.h"
#include "tests/support/tiny_tokenizer.h"

namespace quire::bench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string data_file(const std::string& name) { return QUIRE_SOURCE_DIR "/tests/benchmarks/data/" + name; }

std::vector<double> gaps_of(const std::vector<double>& times) {
  std::vector<double> gaps(times.size());
  std::adjacent_difference(times.begin(), times.end(), gaps.begin());
  return gaps;
}

TEST(SeededRandom, SeedAndStreamNameTheNumbers) {
  SeededRandom a(7), b(7), other_seed(8), other_stream(7, 1);
  for (int i = 0; i < 100; ++i) {
    const std::uint64_t value = a.next();
    EXPECT_EQ(value, b.next());
    EXPECT_NE(value, other_seed.next());
    EXPECT_NE(value, other_stream.next());
  }
}

TEST(SeededRandom, UniformFillsTheUnitIntervalEvenly) {
  SeededRandom random(1);
  std::vector<int> bins(20);
  constexpr int kDraws = 20'000;
  for (int i = 0; i < kDraws; ++i) ++bins[static_cast<std::size_t>(random.uniform() * 20)];
  double chi_square = 0;
  for (const int count : bins) chi_square += (count - 1000.0) * (count - 1000.0) / 1000.0;
  EXPECT_LT(chi_square, 43.8);  // 19 degrees of freedom, p = 0.001
}

TEST(Arrivals, FixedAndBurstAreExact) {
  EXPECT_THAT(arrival_times({.kind = ArrivalKind::kFixed, .rate = 4}, 4, 1), ElementsAre(0, 0.25, 0.5, 0.75));
  EXPECT_THAT(arrival_times({.kind = ArrivalKind::kBurst, .rate = 2, .burst_size = 3}, 7, 1),
              ElementsAre(0, 0, 0, 1.5, 1.5, 1.5, 3));
}

// Gaps are exponential: their mean, their variance, the whole distribution (Kolmogorov and Smirnov, p = 0.001), and no memory.
TEST(Arrivals, PoissonGapsAreExponentialAndIndependent) {
  constexpr int kCount = 20'000;
  constexpr double kRate = 2.5;
  std::vector<double> gaps = gaps_of(arrival_times({.rate = kRate}, kCount, 42));
  const double mean = std::accumulate(gaps.begin(), gaps.end(), 0.0) / kCount;
  EXPECT_NEAR(mean * kRate, 1, 4 / std::sqrt(kCount));
  double square = 0, product = 0;
  for (std::size_t i = 0; i < gaps.size(); ++i) {
    square += (gaps[i] - mean) * (gaps[i] - mean);
    if (i > 0) product += (gaps[i] - mean) * (gaps[i - 1] - mean);
  }
  EXPECT_NEAR(square / kCount * kRate * kRate, 1, 4 * std::sqrt(8.0 / kCount));
  EXPECT_NEAR(product / square, 0, 4 / std::sqrt(kCount));
  std::sort(gaps.begin(), gaps.end());
  double distance = 0;
  for (std::size_t i = 0; i < gaps.size(); ++i) {
    const double expected = -std::expm1(-kRate * gaps[i]);
    distance = std::max({distance, (static_cast<double>(i) + 1) / kCount - expected, expected - static_cast<double>(i) / kCount});
  }
  EXPECT_LT(distance, 1.95 / std::sqrt(kCount));
}

TEST(Arrivals, SeedNamesTheTimes) {
  EXPECT_EQ(arrival_times({.rate = 3}, 50, 5), arrival_times({.rate = 3}, 50, 5));
  EXPECT_NE(arrival_times({.rate = 3}, 50, 5), arrival_times({.rate = 3}, 50, 6));
}

TEST(Arrivals, RatesThatAreNoneAreRefused) {
  for (const double rate : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()})
    EXPECT_ERROR(arrival_times({.rate = rate}, 3, 1), ErrorCode::kInvalidArgument, "rate is");
  EXPECT_ERROR(arrival_times({.rate = 1, .burst_size = 0}, 3, 1), ErrorCode::kInvalidArgument, "burst size is 0");
  for (const double rate : {1e-10, 1e-300, 1e-310})  // a clock of nanoseconds would overflow
    EXPECT_ERROR(arrival_times({.rate = rate}, 3, 1), ErrorCode::kInvalidArgument, "3 requests would take");
}

TEST(Lengths, RangesAreReadOrRefusedByName) {
  EXPECT_EQ(parse_length_range("512", "--input-tokens").least, 512);
  EXPECT_EQ(parse_length_range("64:512", "--input-tokens").most, 512);
  for (const char* wrong : {"", "0", "-3", "12x", "8:4", "1:2:3", ":5", "5:", "99999999999", "nan"})
    EXPECT_ERROR(parse_length_range(wrong, "--input-tokens"), ErrorCode::kInvalidArgument, "--input-tokens");
}

TEST(TraceFiles, MooncakeGivesTimesLengthsAndBlocks) {
  const Trace trace = read_trace(data_file("mooncake_conversation.jsonl"));
  EXPECT_EQ(trace.format, "mooncake");
  ASSERT_EQ(trace.rows.size(), 12u);
  EXPECT_EQ(trace.rows[0].input_tokens, 6758);
  EXPECT_EQ(trace.rows[0].output_tokens, 500);
  EXPECT_EQ(trace.rows[0].block_ids.size(), 14u);
  EXPECT_EQ(trace.rows[11].time_s, 3.0);
  EXPECT_EQ(trace.rows[11].line, 12u);
}

TEST(TraceFiles, AzureAndBurstGptAndLengths) {
  const Trace azure = read_trace(data_file("azure2023_conv.csv"));
  EXPECT_EQ(azure.format, "azure");
  ASSERT_EQ(azure.rows.size(), 16u);
  EXPECT_NEAR(azure.rows[1].time_s, 4.3146, 1e-9);
  EXPECT_EQ(azure.rows[1].input_tokens, 396);
  EXPECT_EQ(azure.rows[1].output_tokens, 109);

  const Trace burst = read_trace(data_file("burstgpt.csv"));
  EXPECT_EQ(burst.format, "burstgpt");
  EXPECT_EQ(burst.num_skipped, 1u) << "a request that failed in the service";
  ASSERT_EQ(burst.rows.size(), 23u);
  EXPECT_EQ(burst.rows[1].time_s, 40);
  EXPECT_EQ(burst.rows[22].line, 25u);

  const Trace lengths = read_trace(data_file("sharegpt_lengths.csv"));
  EXPECT_EQ(lengths.format, "lengths");
  ASSERT_EQ(lengths.rows.size(), 32u);
  EXPECT_EQ(lengths.rows[1].input_tokens, 290);
  EXPECT_EQ(lengths.rows[1].output_tokens, 905);
}

TEST(TraceFiles, PublishersOwnHeadersAreRead) {
  const Trace azure = parse_trace(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 23:59:59.5000000,374,44\r\n2023-11-17 00:00:03.7500000,396,109\r\n",
      "a");
  ASSERT_EQ(azure.rows.size(), 2u);
  EXPECT_EQ(azure.format, "azure");
  EXPECT_DOUBLE_EQ(azure.rows[1].time_s, 4.25);
  const Trace burst = parse_trace(
      "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log", "b");
  ASSERT_EQ(burst.rows.size(), 1u);
  EXPECT_EQ(burst.rows[0].output_tokens, 18);
}

TEST(TraceFiles, AByteOrderMarkIsNoPartOfTheFirstColumn) {
  EXPECT_EQ(parse_trace("\xef\xbb\xbft_s,input_tokens,output_tokens\n0,5,5\n", "t").format, "burstgpt");
}

TEST(TraceFiles, WhatIsWrongIsNamedWithItsLine) {
  const struct {
    const char* text;
    const char* message;
  } cases[] = {
      {"", "t is empty"},
      {"t_ms,input_tokens,output_tokens\n", "t holds no requests"},
      {"\x1f\x8b\x08", "gunzip"},
      {"a,b,c\n1,2,3\n", "t line 1: no known trace begins with 'a,b,c'"},
      {"t_ms,input_tokens,output_tokens\n0,5,5\n1,5\n", "t line 3: 2 fields, where the first line has 3"},
      {"t_ms,input_tokens,output_tokens\n0,5,5\n\n2,5,5\n", "t line 3: is empty"},
      {"t_ms,input_tokens,output_tokens\n0,5,5\n,5,5\n", "t line 3: time is '', not a number"},
      {"t_ms,input_tokens,output_tokens\n0,5,5\nnan,5,5\n", "t line 3: time is 'nan'"},
      {"t_ms,input_tokens,output_tokens\n0,5,5\n9,5,5\n8,5,5\n", "t line 4: its time is 0.001 s before the line before it"},
      {"t_ms,input_tokens,output_tokens\n0,5,-5\n", "t line 2: output tokens is -5"},
      {"t_ms,input_tokens,output_tokens\n0,0,5\n", "t line 2: input tokens is 0"},
      {"t_ms,input_tokens,output_tokens\n0,1.5,5\n", "t line 2: input tokens is 1.5"},
      {"t_ms,input_tokens,output_tokens\n0,5x,5\n", "t line 2: input tokens is '5x'"},
      {"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-13-16 18:17:03.9,3,4\n", "t line 2: time is '2023-13-16 18:17:03.9'"},
      {"TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,3,4\n", "t line 2: time is 'yesterday'"},
      {"t_ms,input_tokens,output_tokens\n0,99999999999,5\n",
       "input tokens is 99999999999, not a whole number from 1 to 16777216"},
      {"t_ms,input_tokens,output_tokens\n1e999,5,5\n", "t line 2: time is '1e999'"},
      {"t_ms,input_tokens,output_tokens,input_tokens\n0,5,5,9\n", "t line 1: 'input_tokens' and 'input_tokens' say the same"},
      {"t_ms,t_s,input_tokens,output_tokens\n0,0,5,5\n", "t line 1: 't_ms' and 't_s' say the same"},
      {"{\"timestamp\":1e999,\"input_length\":5,\"output_length\":5,\"hash_ids\":[1]}", "t line 1: timestamp is inf"},
      {"{\"timestamp\":0", "t line 1: not a JSON object"},
      {"{\"timestamp\":0,\"input_length\":5,\"output_length\":5}", "t line 1: no list 'hash_ids'"},
      {"{\"timestamp\":0,\"input_length\":513,\"output_length\":5,\"hash_ids\":[1]}",
       "1 hash_ids for 513 tokens, which are 2 blocks"},
      {"{\"timestamp\":0,\"input_length\":5,\"output_length\":5,\"hash_ids\":[\"a\"]}", "hash_ids holds something that is no id"},
      {"{\"timestamp\":\"0\",\"input_length\":5,\"output_length\":5,\"hash_ids\":[1]}", "no number 'timestamp'"},
  };
  for (const auto& [text, message] : cases) EXPECT_ERROR(parse_trace(text, "t"), ErrorCode::kInvalidFile, message);
  EXPECT_ERROR(read_trace("/no/such/trace"), ErrorCode::kNotFound, "/no/such/trace: No such file");
  EXPECT_ERROR(read_trace(QUIRE_SOURCE_DIR), ErrorCode::kInvalidFile, "is a folder");
}

RC_GTEST_PROP(TraceFilesProperty, NoTextBreaksTheReader, ()) {
  const auto text = *rc::gen::container<std::string>(rc::gen::elementOf(std::string("0159.,:-{}[]\" \n\rtimespahinul_")));
  const auto head =
      *rc::gen::element<std::string>("", "t_ms,input_tokens,output_tokens\n", "TIMESTAMP,ContextTokens,GeneratedTokens\n",
                                     "{\"timestamp\":0,\"input_length\":5,\"output_length\":5,\"hash_ids\":[");
  try {
    RC_ASSERT(!parse_trace(head + text, "t").rows.empty());
  } catch (const Error& error) {
    RC_ASSERT(error.code() == ErrorCode::kInvalidFile);
  }
}

TEST(Workload, UniformLengthsCoverTheirRange) {
  const auto requests =
      draw_workload({.num_requests = 4000, .input_tokens = {10, 19}, .output_tokens = {3, 3}, .prefix_tokens = 7}, {}, {});
  std::vector<int> counts(10);
  for (const PlannedRequest& request : requests) {
    ASSERT_EQ(request.prompt.size(), 2u);
    EXPECT_EQ(request.prompt[0].length, 7);
    EXPECT_EQ(request.input_tokens, 7 + request.prompt[1].length);
    EXPECT_EQ(request.output_tokens, 3);
    ++counts.at(static_cast<std::size_t>(request.prompt[1].length - 10));
  }
  for (const int count : counts) EXPECT_NEAR(count, 400, 80);
}

TEST(Workload, LengthsOfAFileComeInPairs) {
  const Trace lengths = parse_trace("input_tokens,output_tokens\n10,100\n20,200\n900,300\n", "l");
  const auto requests = draw_workload({.num_requests = 300, .max_input_tokens = 500, .max_output_tokens = 250}, lengths,
                                      std::vector<double>(300, 1.5));
  std::set<std::pair<int, int>> pairs;
  for (const PlannedRequest& request : requests) pairs.insert({request.input_tokens, request.output_tokens});
  EXPECT_THAT(pairs, ElementsAre(std::pair(10, 100), std::pair(20, 200), std::pair(500, 250)));
  EXPECT_EQ(requests[9].due_s, 1.5);
}

TEST(Workload, ReplayKeepsPrefixesAndScalesTimes) {
  const Trace trace = read_trace(data_file("mooncake_conversation.jsonl"));
  const auto requests = replay_workload({.num_requests = 100}, {.time_scale = 0.5}, trace, "t");
  ASSERT_EQ(requests.size(), 12u);
  EXPECT_EQ(requests[11].due_s, 1.5);
  EXPECT_EQ(requests[0].prompt[0], requests[1].prompt[0]) << "both begin with block 0";
  EXPECT_NE(requests[0].prompt[1], requests[1].prompt[1]);
  for (std::size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(requests[i].input_tokens, trace.rows[i].input_tokens);
  EXPECT_EQ(requests[0].prompt.back().length, 6758 % kMooncakeBlockTokens);
  // An eighth of the lengths: blocks of 64.
  const auto small = replay_workload({.num_requests = 3, .max_input_tokens = 800, .max_output_tokens = 20},
                                     {.first_row = 2, .length_scale = 0.125}, trace, "t");
  ASSERT_EQ(small.size(), 3u);
  EXPECT_EQ(small[0].input_tokens, 800) << "7322 / 8, cut";
  EXPECT_EQ(small[0].prompt[0].length, 64);
  EXPECT_EQ(small[0].output_tokens, 20);
}

TEST(Workload, PausesThatOnlyWaitAreRefused) {
  const Trace trace = parse_trace("t_s,input_tokens,output_tokens\n0,5,5\n10,5,5\n500,5,5\n", "t");
  EXPECT_ERROR(replay_workload({}, {}, trace, "t"), ErrorCode::kInvalidFile, "t line 4: nothing arrives for 490 s before it");
  EXPECT_EQ(replay_workload({}, {.time_scale = 0.1}, trace, "t").size(), 3u);
  EXPECT_EQ(replay_workload({.num_requests = 2}, {}, trace, "t").size(), 2u) << "what is not replayed does not matter";
  EXPECT_ERROR(replay_workload({}, {.time_scale = 1e9, .max_gap_s = 1e300}, trace, "t"), ErrorCode::kInvalidArgument,
               "the rows would take");
  EXPECT_ERROR(replay_workload({}, {.first_row = 4}, trace, "t"), ErrorCode::kInvalidArgument,
               "--trace-first-row is 4, of the 3");
}

// Otherwise a sweep would find the prompts of its first load in the prefix cache.
TEST(Workload, RunsOfOneSeedHaveEqualLengthsAndShareNoPrompt) {
  const auto first = draw_workload({.run = 0, .input_tokens = {1, 99}, .prefix_tokens = 5}, {}, {});
  const auto second = draw_workload({.run = 1, .input_tokens = {1, 99}, .prefix_tokens = 5}, {}, {});
  std::set<std::uint64_t> keys;
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].input_tokens, second[i].input_tokens);
    for (const auto* request : {&first[i], &second[i]})
      for (const PromptSegment& segment : request->prompt) keys.insert(segment.key);
  }
  EXPECT_EQ(keys.size(), 2 * (first.size() + 1));
}

TEST(Workload, WarmupSharesNothing) {
  const auto requests = draw_workload({.num_requests = 2, .prefix_tokens = 50}, {}, {});
  const auto warmup = warmup_workload(requests, 3);
  ASSERT_EQ(warmup.size(), 3u);
  std::set<std::uint64_t> keys;
  for (const auto* list : {&requests, &warmup})
    for (const PlannedRequest& request : *list)
      for (const PromptSegment& segment : request.prompt) keys.insert(segment.key);
  EXPECT_EQ(keys.size(), 1u + 2 + 3);
  EXPECT_EQ(warmup[2].input_tokens, 562);
}

TEST(Prompts, EqualSegmentsGiveEqualTokens) {
  const PromptMaker maker(32000, 9);
  const auto a = maker.tokens({.prompt = {{1, 40}, {2, 10}}, .input_tokens = 50});
  const auto b = maker.tokens({.prompt = {{1, 60}, {3, 10}}, .input_tokens = 70});
  ASSERT_EQ(a.size(), 50u);
  ASSERT_EQ(b.size(), 70u);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 40, b.begin()));
  EXPECT_FALSE(std::equal(a.begin() + 40, a.end(), b.begin() + 60));
  for (const TokenId id : a) EXPECT_TRUE(id >= 256 && id < 32000);
  EXPECT_NE(PromptMaker(32000, 10).tokens({.prompt = {{1, 40}}, .input_tokens = 40}),
            std::vector<TokenId>(a.begin(), a.begin() + 40));
  EXPECT_ERROR(PromptMaker(256, 1), ErrorCode::kInvalidArgument, "vocabulary size is 256");
}

TEST(Prompts, TextsHaveTheTokensAskedFor) {
  const test::TinyTokenizer tiny = test::TinyTokenizer::make(300);
  const Tokenizer tokenizer = Tokenizer::from_json(tiny.tokenizer_json(), tiny.tokenizer_config_json());
  const PromptMaker maker(tokenizer, 3, true);
  const PlannedRequest request{.prompt = {{1, 37}, {2, 100}}, .input_tokens = 137};
  EXPECT_EQ(tokenizer.encode(maker.text(request), {.add_special = false}).size(), 137u);
  EXPECT_EQ(tokenizer.encode(maker.text(request), {.add_special = false}), maker.tokens(request));
  const test::TinyTokenizer bytes = test::TinyTokenizer::make(259);
  EXPECT_ERROR(PromptMaker(Tokenizer::from_json(bytes.tokenizer_json(), bytes.tokenizer_config_json()), 3, true),
               ErrorCode::kUnsupported, "too few words");
}

}  // namespace
}  // namespace quire::bench
