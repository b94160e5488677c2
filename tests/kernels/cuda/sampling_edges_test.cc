// Where sampling on the device could go wrong by one: the first and the last token, entry and block, and sums that equal what
// they are compared with.
#include "tests/kernels/cuda/sampling_problem.h"

#include <cmath>
#include <numeric>
#include <utility>

#include "kernels/cpu/sampling_filters.h"

namespace quire::testing {
namespace {

std::int32_t token_of(const std::vector<float>& logits, const SampleRow& row) {
  return sample_on_device({logits}, {row})[0].token;
}

// What is drawn where the random number is `uniform`, by a row with these parameters.
std::int32_t draw_at(double uniform, const std::vector<float>& logits, cuda::DeviceSampleRow row = {}) {
  const auto size = static_cast<std::int64_t>(logits.size());
  const DeviceTensor view(DType::kF32, {1, size}, logits), scratch(DType::kF32, {1, size});
  row.num_allowed = static_cast<std::int32_t>(size);
  row.uniform = uniform;
  const simt::DeviceBuffer<cuda::DeviceSampleRow> rows(std::vector<cuda::DeviceSampleRow>{row});
  const simt::DeviceBuffer<SampleResult> results(1);
  cuda::sample({view, rows.data(), scratch.view().as<float>(), results.data()}, nullptr);
  return results[0].token;
}

// The last token that a row with these parameters may draw, if the last one is not too unlikely.
std::int32_t last_kept(const std::vector<float>& logits, const cuda::DeviceSampleRow& row) {
  return draw_at(std::nextafter(1.0, 0.0), logits, row);
}

TEST(CudaSamplingDraw, TakesTheFirstTokenWhoseSumExceedsTheTarget) {
  const std::vector<float> four(4, 0.0f);
  EXPECT_EQ(draw_at(0.0, four), 0);
  EXPECT_EQ(draw_at(0.25, four), 1);  // the sum up to token 0 equals the target
  EXPECT_EQ(draw_at(0.5, four), 2);
  EXPECT_EQ(draw_at(0.75, four), 3);
  EXPECT_EQ(draw_at(0.5, std::vector<float>(2048, 0.0f)), 1024);  // and that of a block
  EXPECT_EQ(draw_at(0.5, four, {.temperature = 1e-5f}), 2) << "only below this temperature the best is taken";
}

TEST(CudaSamplingDraw, ReachesTheBlockBehindThirtyTwo) {
  std::vector<float> logits(32 * 1024 + 1, -kInfinity);
  logits.front() = logits.back() = 0.0f;
  EXPECT_EQ(draw_at(0.25, logits), 0);
  EXPECT_EQ(draw_at(0.75, logits), 32 * 1024);
}

// A block is summed in float: 1 and eight times 1.5 * 2^-24 are 1 + 16 * 2^-24 there, but 1 + 12 * 2^-24 token by token.
TEST(CudaSamplingDraw, TakesTheLastTokenWithWeightWhereNoSumExceedsTheTarget) {
  for (const std::size_t first : {0, 1}) {
    std::vector<float> logits(1100, -kInfinity);
    logits[first] = 0.0f;
    for (std::size_t i = 1; i <= 8; ++i) logits[first + 16 * i] = -16.23f;
    EXPECT_EQ(draw_at(std::nextafter(1.0, 0.0), logits), static_cast<std::int32_t>(first + 128));
  }
}

TEST(CudaSamplingTargets, AreTakenAsTheyAre) {
  const std::vector<float> four{0.0f, 1.0f, 2.0f, 3.0f};
  for (const int target : {-1, 0, 1, 3, 4}) {
    const SampleResult result = sample_on_device({four}, {{.draw = false, .target = target, .num_top = 1}})[0];
    EXPECT_EQ(result.ok, target >= 0 && target < 4) << target;
    EXPECT_EQ(result.token, target);
    EXPECT_EQ(result.top_tokens[0], result.ok ? 3 : 0);
  }
}

TEST(CudaSamplingAdjustments, ReachEveryEntry) {
  constexpr int kEntries = 520, kSize = 600;  // more than threads
  for (const std::size_t entry : {0, 512, 519}) {
    std::vector<TokenBias> biases;
    std::vector<TokenCount> counts;
    for (int i = 0; i < kEntries; ++i) biases.push_back({i, 0.0f}), counts.push_back({i, 0});
    biases[entry].bias = 3.0f;
    SampleRow biased{.temperature = 0.0f};
    biased.biases = biases.data(), biased.num_biases = kEntries;
    EXPECT_EQ(token_of(std::vector<float>(kSize, 0.0f), biased), static_cast<std::int32_t>(entry));

    counts[entry].in_output = 1;
    std::vector<float> logits(kSize, 0.0f);
    logits[entry] = 1.0f, logits[70] = 0.5f;  // 1 - (0.25 + 0.5) is less than 0.5, of which nothing is taken
    SampleRow penalised{.temperature = 0.0f, .presence_penalty = 0.25f, .frequency_penalty = 0.5f};
    penalised.counts = counts.data(), penalised.num_counts = kEntries;
    EXPECT_EQ(token_of(logits, penalised), 70) << entry;
  }
}

TEST(CudaSamplingAdjustments, ASingleBiasIsEnoughAndTokensThatDoNotExistArePassedOver) {
  const std::vector<float> flat(64, 0.0f);
  const TokenBias one[] = {{9, 1.0f}}, strange[] = {{-1, 5.0f}, {64, 5.0f}};
  const TokenCount counts[] = {{-1, 1}, {64, 1}};
  SampleRow row{.temperature = 0.0f};
  row.biases = one, row.num_biases = 1;
  EXPECT_EQ(token_of(flat, row), 9);
  row.biases = strange, row.num_biases = 2;
  EXPECT_EQ(token_of(flat, row), 0);
  SampleRow penalised{.temperature = 0.0f, .presence_penalty = 1.0f};
  penalised.counts = counts, penalised.num_counts = 2;
  EXPECT_EQ(token_of(flat, penalised), 0);
}

TEST(CudaSamplingAdjustments, NeitherAllowWhatIsForbiddenNorHideNaN) {
  const std::uint32_t nothing[] = {0, 0};
  const TokenBias likely[] = {{3, 5.0f}}, unknown[] = {{3, NAN}};
  for (const float temperature : {0.0f, 1.0f}) {
    SampleRow row{.temperature = temperature};
    row.biases = likely, row.num_biases = 1, row.mask = nothing;
    EXPECT_EQ(token_of(std::vector<float>(64, 0.0f), row), -1);
    row.biases = unknown, row.mask = nullptr;
    EXPECT_EQ(token_of(std::vector<float>(64, 0.0f), row), -1);
  }
}

// Sixteen draws of the row; -1 unless all are the same.
std::int32_t only_token(const std::vector<float>& logits, SampleRow row) {
  std::vector<SampleRow> rows;
  for (row.counter = 0; row.counter < 16; ++row.counter) rows.push_back(row);
  const std::vector<SampleResult> results = sample_on_device(Logits(rows.size(), logits), rows);
  const auto differs = [&](const SampleResult& result) { return result.token != results[0].token; };
  return std::any_of(results.begin(), results.end(), differs) ? -1 : results[0].token;
}

// Equal logits are kept by their ids, which end in the first, the last and the middle of a search's groups of 32 and 64 bins.
TEST(CudaSamplingFilters, ALimitMayLieInAnyBin) {
  const std::vector<float> flat(2200, 0.0f);
  for (const int limit : {1, 2, 31, 32, 33, 34, 64, 65, 96, 97, 98, 1984, 1985, 2047, 2048, 2049, 2080, 2081, 2199}) {
    EXPECT_EQ(last_kept(flat, {.top_k = limit}), limit - 1);
    EXPECT_EQ(last_kept(flat, {.top_p = (static_cast<float>(limit) - 0.5f) / 2200.0f}), limit - 1);
  }
}

TEST(CudaSamplingFilters, ALimitMayBeBeyondAllTokens) {
  std::vector<float> logits(64, -kInfinity);
  for (const std::size_t id : {3, 40, 63}) logits[id] = 0.0f;
  EXPECT_EQ(draw_at(0.0, logits, {.top_k = 10}), 3);
  EXPECT_EQ(draw_at(0.5, logits, {.top_k = 10}), 40);
  EXPECT_EQ(last_kept(logits, {.top_k = 10}), 63);
}

// Weights are summed in units of 2^-43; -29.8 has the weight of one. The first token's share is 2^43 of 2^44 + 1 units: half a
// unit less than half.
TEST(CudaSamplingFilters, SharesAreExactToAUnit) {
  for (const std::size_t other : {std::size_t{1}, std::size_t{1023}, std::size_t{2047}}) {
    std::vector<float> logits(2200, -kInfinity);
    logits[0] = logits[other] = 0.0f;
    EXPECT_EQ(last_kept(logits, {.top_p = 0.5f}), 0) << "exactly half";
    logits[2199] = -29.8f;
    EXPECT_EQ(last_kept(logits, {.top_p = 0.5f}), static_cast<std::int32_t>(other));
  }
}

// The CPU's filters and draw, for a uniform that no seed is known to give.
std::int32_t draw_on_cpu_at(double uniform, std::vector<float> logits, const SampleRow& row) {
  const auto size = static_cast<std::int64_t>(logits.size());
  std::vector<float> weights;
  for (const float logit : logits) weights.push_back(std::exp(logit));
  std::vector<std::int32_t> ids(2 * logits.size());
  const cpu::Distribution distribution{logits.data(), weights.data(), size, ids.data()};
  cpu::apply_filters(row, distribution);
  std::vector<double> block_sums;
  for (std::int64_t begin = 0; begin < size; begin += cpu::kDrawBlock) {
    const auto end = std::min(begin + cpu::kDrawBlock, size);
    block_sums.push_back(std::accumulate(weights.begin() + begin, weights.begin() + end, 0.0f));
  }
  return cpu::draw(distribution, block_sums.data(), uniform);
}

// A share of 1 is no filter. The search for a share would remove the last token, for e^-31 (3.4e-14) is 0.3 of the unit in which
// it sums weights (2^-43), and the first token alone has all units. The largest uniform draws the last token:
// (1 - 2^-53) (1 + 3.4e-14) is above 1, the sum up to the first. It stands in another block, whose sum is its own: in float,
// 1 + 3.4e-14 is 1.
TEST(CudaSamplingFilters, AShareOfOneRemovesNothing) {
  std::vector<float> logits(1101, -kInfinity);
  logits[0] = 0.0f, logits[1100] = -31.0f;
  const double largest = std::nextafter(1.0, 0.0);
  EXPECT_EQ(draw_at(largest, logits, {.top_p = 1.0f, .typical_p = 1.0f}), 1100);
  EXPECT_EQ(draw_on_cpu_at(largest, logits, {.top_p = 1.0f, .typical_p = 1.0f}), 1100);
  const float below_one = std::nextafter(1.0f, 0.0f);  // the first token has this share, and more
  for (const auto& [top_p, typical_p] : {std::pair{below_one, 1.0f}, std::pair{1.0f, below_one}}) {
    EXPECT_EQ(draw_at(largest, logits, {.top_p = top_p, .typical_p = typical_p}), 0);
    EXPECT_EQ(draw_on_cpu_at(largest, logits, {.top_p = top_p, .typical_p = typical_p}), 0);
  }
}

TEST(CudaSamplingFilters, ASearchEndsWhereOneTokenIsLeft) {
  if (!simt::has_statistics()) GTEST_SKIP() << "nothing is counted here";
  const auto barriers = [](const std::vector<float>& logits) {
    simt::take_statistics();
    EXPECT_EQ(last_kept(logits, {.top_k = 1}), 0);
    return simt::take_statistics().num_barriers;
  };
  const std::vector<float> equal(4, 0.0f), different{0.0f, -10.0f, -20.0f, -30.0f};
  EXPECT_EQ(barriers(equal) - barriers(different), 4 * 4) << "five rounds of four barriers, and one";
}

// Keys of very negative logits lie in the last group of bins of the first round.
TEST(CudaSamplingFilters, AlternativesMayBeVeryUnlikely) {
  std::vector<float> logits(70, -3e38f);
  logits[8] = 0.0f, logits[20] = -2e38f, logits[40] = -1e37f;
  EXPECT_TRUE(equals_cpu({logits, logits}, {{.temperature = 0.0f, .num_top = 3}, {.temperature = 0.0f, .num_top = 5}}));
}

TEST(CudaSamplingFilters, TreatTheFirstTokenLikeOthers) {
  std::vector<float> second(40, -9.0f), first(40, -1.0f), typical(11, -3.0f);
  second[0] = 0.0f, second[5] = 0.1f;
  EXPECT_EQ(only_token(second, {.top_k = 1}), 5);
  EXPECT_EQ(only_token(second, {.min_p = 0.99f}), 5);
  first[0] = typical[0] = 0.0f;
  EXPECT_EQ(only_token(first, {.min_p = 0.5f}), 0);
  EXPECT_EQ(only_token(typical, {.typical_p = 0.3f}), 0);  // the mean is -1; without token 0 it were -3
}

}  // namespace
}  // namespace quire::testing
