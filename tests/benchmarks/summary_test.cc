// The figures: percentiles, goodput, throughput, and how they are written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "benchmarks/serving/progress.h"
#include "benchmarks/serving/report.h"
#include "benchmarks/serving/summary.h"

namespace quire::bench {
namespace {

using testing::HasSubstr;
using testing::Not;

RequestRecord record(double due_s, std::vector<double> piece_s) {
  RequestRecord record;
  record.due_s = record.sent_s = due_s;
  record.end_s = piece_s.back();
  record.input_tokens = 10;
  record.asked_output_tokens = record.output_tokens = static_cast<int>(piece_s.size());
  record.counted = true;
  record.piece_s = std::move(piece_s);
  return record;
}

RequestRecord failed(std::string kind, std::string message, double end_s) {
  RequestRecord record;
  record.end_s = end_s;
  record.failure = Failure{std::move(kind), std::move(message)};
  return record;
}

// Values of numpy.percentile, method "linear".
TEST(Percentile, IsLinearBetweenRanks) {
  const std::vector<double> values = {15, 20, 35, 40, 50};
  EXPECT_DOUBLE_EQ(percentile(values, 0), 15);
  EXPECT_DOUBLE_EQ(percentile(values, 40), 29);
  EXPECT_DOUBLE_EQ(percentile(values, 50), 35);
  EXPECT_DOUBLE_EQ(percentile(values, 90), 46);
  EXPECT_DOUBLE_EQ(percentile(values, 99), 49.6);
  EXPECT_DOUBLE_EQ(percentile(values, 100), 50);
  EXPECT_DOUBLE_EQ(percentile({7}, 99), 7);
}

RC_GTEST_PROP(PercentileProperty, IsMonotonicAndBetweenTheValuesAroundIt, ()) {
  auto integers = *rc::gen::nonEmpty<std::vector<int>>();
  std::sort(integers.begin(), integers.end());
  const std::vector<double> values(integers.begin(), integers.end());
  const int low = *rc::gen::inRange(0, 101);
  const int high = *rc::gen::inRange(low, 101);
  const double at_low = percentile(values, low), at_high = percentile(values, high);
  RC_ASSERT(values.front() <= at_low);
  RC_ASSERT(at_low <= at_high + 1e-6);
  RC_ASSERT(at_high <= values.back());
  // At least the given share of the values is at most the one above it.
  const auto not_above = std::upper_bound(values.begin(), values.end(), at_high + 1e-9) - values.begin();
  RC_ASSERT(static_cast<double>(not_above) >= high / 100.0 * static_cast<double>(values.size() - 1));
}

TEST(Summary, LatenciesCountFromWhenARequestWasDue) {
  RequestRecord late = record(1.0, {1.5, 1.6, 1.9});
  late.sent_s = 1.4;  // the generator was late: that hides nothing
  const Summary s = summarize({record(0, {0.25, 0.5}), late}, {});
  EXPECT_EQ(s.num_completed, 2u);
  EXPECT_NEAR(s.ttft_ms.mean, 375, 1e-9);
  EXPECT_NEAR(s.ttft_ms.max, 500, 1e-9);
  EXPECT_EQ(s.itl_ms.count, 3u);
  EXPECT_NEAR(s.itl_ms.max, 300, 1e-9);
  EXPECT_NEAR(s.tpot_ms.max, 250, 1e-9);
  EXPECT_NEAR(s.tpot_ms.mean, 225, 1e-9);
  EXPECT_NEAR(s.e2e_ms.max, 900, 1e-9);
  EXPECT_NEAR(s.lateness_ms.max, 400, 1e-9);
  EXPECT_NEAR(s.duration_s, 1.9, 1e-9);
  EXPECT_NEAR(s.requests_per_s, 2 / 1.9, 1e-9);
  EXPECT_NEAR(s.output_tokens_per_s, 5 / 1.9, 1e-9);
  EXPECT_NEAR(s.total_tokens_per_s, 25 / 1.9, 1e-9);
  EXPECT_EQ(s.max_concurrency, 1);
  EXPECT_NEAR(s.mean_concurrency, 1.4 / 1.9, 1e-9);
}

TEST(Summary, PiecesOfSeveralTokensCountByTheServersNumber) {
  RequestRecord speculative = record(0, {1, 2, 3});
  speculative.output_tokens = 9;
  const Summary s = summarize({speculative}, {});
  EXPECT_EQ(s.output_tokens, 9);
  EXPECT_EQ(s.itl_ms.count, 2u) << "gaps between pieces, as the user sees them";
  EXPECT_NEAR(s.tpot_ms.mean, 250, 1e-9);
  double sum = 0;
  for (const double rate : s.tokens_per_s_over_time) sum += rate * s.bin_s;
  EXPECT_NEAR(sum, 9, 1e-9);
}

TEST(Summary, GoodputCountsRequestsThatKeepAllLimits) {
  const std::vector<RequestRecord> records = {record(0, {0.1, 0.2, 0.3}), record(0, {0.2, 0.3, 0.4}),
                                              record(0, {0.1, 0.15, 0.4})};
  EXPECT_EQ(summarize(records, {}).num_good, 3u);
  EXPECT_EQ(summarize(records, {.ttft_ms = 150}).num_good, 2u);
  EXPECT_EQ(summarize(records, {.itl_ms = 200}).num_good, 2u);
  EXPECT_EQ(summarize(records, {.tpot_ms = 120}).num_good, 2u);
  EXPECT_EQ(summarize(records, {.e2e_ms = 350}).num_good, 1u);
  const Summary s = summarize(records, {.ttft_ms = 150, .itl_ms = 200});
  EXPECT_EQ(s.num_good, 1u);
  EXPECT_NEAR(s.good_requests_per_s, 1 / 0.4, 1e-9);
}

TEST(Summary, FailuresAreCountedByKindAndGiveNoLatency) {
  const Summary s =
      summarize({record(0, {1, 2}), failed("timeout", "m", 9), failed("timeout", "m", 5), failed("http_503", "n", 3)}, {});
  EXPECT_EQ(s.num_failed, 3u);
  EXPECT_EQ(s.failures.at("timeout"), 2u);
  EXPECT_EQ(s.failures.at("http_503"), 1u);
  EXPECT_EQ(s.e2e_ms.count, 1u);
  EXPECT_NEAR(s.duration_s, 9, 1e-9) << "time that went into failures is not free";
  EXPECT_EQ(summarize({failed("timeout", "m", 9)}, {}).requests_per_s, 0);
  EXPECT_EQ(summarize({}, {}).num_completed, 0u);
}

TEST(Summary, ConcurrencyAndTimeSeries) {
  const Summary s = summarize({record(0, {1, 2, 3}), record(1, {2, 4}), record(2, {2.5}), record(4, {13})}, {});
  EXPECT_EQ(s.max_concurrency, 3);
  EXPECT_EQ(s.bin_s, 0.5);
  ASSERT_EQ(s.tokens_per_s_over_time.size(), 27u);
  EXPECT_NEAR(s.tokens_per_s_over_time[4], 2 / 0.5, 1e-9);
  EXPECT_NEAR(s.tokens_per_s_over_time[26], 1 / 0.5, 1e-9);
}

TEST(Report, TableSaysWhatMatters) {
  RequestRecord shorter = record(0, {0.1, 0.2});
  shorter.asked_output_tokens = 4;
  shorter.counted = false;
  const Limits limits{.ttft_ms = 150};
  const std::string text = table({"poisson", 2}, summarize({record(0, {0.1, 0.3}), shorter}, limits), limits);
  EXPECT_THAT(text, HasSubstr("poisson, 2 requests/s"));
  EXPECT_THAT(text, HasSubstr("2 answered, 0 failed, in 0.30 s"));
  EXPECT_THAT(text, HasSubstr("time to first token          100.00     100.00"));
  EXPECT_THAT(text, HasSubstr("(2 of 2 within the limits)"));
  EXPECT_THAT(text, HasSubstr("1 answers are shorter"));
  EXPECT_THAT(text, HasSubstr("did not count the tokens of 1 answers"));
  EXPECT_THAT(table({"closed", 2}, summarize({record(0, {0.1})}, {}), {}), Not(HasSubstr("goodput")));
}

TEST(Report, TitlesNameTheLoad) {
  EXPECT_EQ((LoadName{"closed", 8}.text()), "closed loop of 8 streams");
  EXPECT_EQ((LoadName{"trace", 0.0125}.text()), "trace, 0.0125 requests/s");
  EXPECT_EQ((LoadName{"trace", 0}.text()), "trace, all at once") << "requests without time between them have no rate";
}

TEST(Report, JsonHoldsEveryFigure) {
  const auto object = to_json({"closed", 4}, summarize({record(0, {0.1, 0.3}), failed("closed", "m", 1)}, {}), {});
  EXPECT_EQ(object.at("load").at("value").to_number<int>(), 4);
  EXPECT_EQ(object.at("requests").at("failures").at("closed").to_number<int>(), 1);
  EXPECT_TRUE(object.at("requests").at("good").is_null());
  EXPECT_EQ(object.at("itl_ms").at("p99").to_number<double>(), 200);
  EXPECT_EQ(object.at("total_output_tokens").to_number<int>(), 2);
  EXPECT_TRUE(to_json({"closed", 4}, summarize({record(0, {0.1})}, {}), {}).at("itl_ms").is_null());
}

TEST(Report, FailuresAreDescribedOnceForEachKind) {
  EXPECT_EQ(describe_failures({record(0, {1}), failed("timeout", "first", 1), failed("timeout", "second", 1),
                               failed("closed", "gone", 1), failed("cancelled", "", 1)}),
            "3 of 5 requests failed:\n  1 x closed: gone\n  2 x timeout: first");
}

TEST(Progress, TextShowsTheShare) {
  EXPECT_EQ(progress_text({.total = 8, .sent = 6, .done = 4, .failed = 1}, 2.6),
            "[################................] 4/8 done, 2 open, 1 failed, 3 s");
}

}  // namespace
}  // namespace quire::bench
