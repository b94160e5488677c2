// Sampling: filters against an oracle that sorts, draws against probabilities, and the faults of others by name.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/cpu/philox.h"
#include "kernels/cpu/sampling_filters.h"
#include "tests/support/cpu_variants.h"
#include "tests/support/reference.h"

namespace quire::testing {
namespace {

std::vector<SampleResult> sample_rows(const cpu::KernelTable& kernels, std::vector<std::vector<float>> logits,
                                      const std::vector<SampleRow>& rows, int threads = 1) {
  std::vector<float> flat;
  for (const auto& row : logits) flat.insert(flat.end(), row.begin(), row.end());
  const std::vector<float> before = flat;
  std::vector<SampleResult> results(rows.size());
  ThreadPool pool(threads);
  const TensorView view(flat.data(), DType::kF32,
                        {static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(logits[0].size())});
  // Doubles, for the alignment; full of NaN, for what another row left there must not show.
  std::vector<double> scratch(cpu::sample_scratch_bytes(view.dim(1), threads) / sizeof(double), NAN);
  kernels.sample({view, rows.data(), results.data()}, pool, scratch.data());
  EXPECT_TRUE(same_bits(flat, before)) << "the logits were changed";
  return results;
}

SampleResult sample_row(const cpu::KernelTable& kernels, const std::vector<float>& logits, const SampleRow& row) {
  return sample_rows(kernels, {logits}, {row})[0];
}

void expect_same(const SampleResult& a, const SampleResult& b) {
  EXPECT_EQ(a.ok, b.ok);
  EXPECT_EQ(a.token, b.token);
  EXPECT_TRUE(same_bits(a.logprob, b.logprob));
  for (int i = 0; i < SampleResult::kMaxTop; ++i) {
    EXPECT_EQ(a.top_tokens[i], b.top_tokens[i]);
    EXPECT_TRUE(same_bits(a.top_logprobs[i], b.top_logprobs[i]));
  }
}

class SamplingTest : public CpuKernelTest {
 protected:
  // How often each token comes in `count` draws.
  std::vector<int> tally(const std::vector<float>& logits, SampleRow row, int count) const {
    std::vector<SampleRow> rows(count, row);
    for (int i = 0; i < count; ++i) rows[i].counter = static_cast<std::uint32_t>(i);
    std::vector<int> counts(logits.size());
    for (const SampleResult& result : sample_rows(table(), std::vector(count, logits), rows)) {
      EXPECT_TRUE(result.ok);
      ++counts.at(static_cast<std::size_t>(result.token));
    }
    return counts;
  }
};
QUIRE_INSTANTIATE_VARIANTS(SamplingTest);
class PeerBugs : public SamplingTest {};
QUIRE_INSTANTIATE_VARIANTS(PeerBugs);

std::vector<float> log_of(std::vector<float> probabilities) {
  for (float& p : probabilities) p = std::log(p);
  return probabilities;
}

TEST(Philox, KnownAnswers) {  // of the authors' own test vectors
  using Words = std::array<std::uint32_t, 4>;
  EXPECT_EQ(cpu::philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(cpu::philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(cpu::philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformsFillTheUnitInterval) {
  double sum = 0.0, least = 1.0, greatest = 0.0;
  constexpr int kCount = 100000;
  for (std::uint32_t i = 0; i < kCount; ++i) {
    const double u = cpu::uniform(1234567890123456789u, i % 7, i);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    least = std::min(least, u);
    greatest = std::max(greatest, u);
  }
  EXPECT_NEAR(sum / kCount, 0.5, 0.005);
  EXPECT_LT(least, 1e-4);
  EXPECT_GT(greatest, 1 - 1e-4);
  EXPECT_NE(cpu::uniform(1, 0, 0), cpu::uniform(std::uint64_t{1} << 32, 0, 0)) << "the seed's upper half counts";
}

// The tokens that `filters` leave of the distribution of `logits`, largest 0.
std::vector<bool> kept(std::vector<float> logits, const SampleRow& filters) {
  const float top = *std::max_element(logits.begin(), logits.end());
  std::vector<float> weights;
  for (float& x : logits) {
    x -= top;
    weights.push_back(std::exp(x));
  }
  std::vector<std::int32_t> scratch(2 * logits.size());
  cpu::apply_filters(filters, {logits.data(), weights.data(), static_cast<std::int64_t>(logits.size()), scratch.data()});
  std::vector<bool> left;
  for (const float w : weights) left.push_back(w > 0);
  return left;
}

TEST(SamplingFilters, EqualTheOracle) {
  const SampleRow filters[] = {{.top_k = 1},
                               {.top_k = 5},
                               {.top_p = 0.1f},
                               {.top_p = 0.9f},
                               {.top_p = 0.999f},
                               {.min_p = 0.1f},
                               {.min_p = 1.0f},
                               {.typical_p = 0.2f},
                               {.typical_p = 0.9f},
                               {.top_k = 20, .top_p = 0.7f},
                               {.top_k = 30, .top_p = 0.8f, .min_p = 0.05f, .typical_p = 0.7f},
                               {.top_p = 0.5f, .typical_p = 0.5f},
                               {.min_p = 0.3f, .typical_p = 0.05f}};
  for (const int size : {1, 2, 10, 100, 3000}) {
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      std::vector<float> logits = noises(size, seed + 1000 * size, seed % 2 == 0 ? 1.0f : 4.0f);
      if (seed % 4 == 3) {
        for (float& x : logits) x = std::round(x * 2);  // many ties
      }
      for (const SampleRow& row : filters) {
        const std::vector<double> expected = reference::sampling_distribution(logits, row);
        const std::vector<bool> left = kept(logits, row);
        for (int i = 0; i < size; ++i) {
          ASSERT_EQ(left[i], expected[i] > 0)
              << size << " tokens, seed " << seed << ", token " << i << ", top_k " << row.top_k << ", top_p " << row.top_p
              << ", typical_p " << row.typical_p << ", min_p " << row.min_p;
        }
      }
    }
  }
}

TEST(SamplingFilters, LargeVocabulary) {
  constexpr int kSize = 262144;
  const std::vector<float> logits = noises(kSize, 1, 3.0f);
  for (const SampleRow& row : {SampleRow{.top_k = 1000}, SampleRow{.top_p = 0.9f}, SampleRow{.typical_p = 0.9f}}) {
    const std::vector<double> expected = reference::sampling_distribution(logits, row);
    const std::vector<bool> left = kept(logits, row);
    int differing = 0;  // the sums of a hundred thousand rounded weights may shift the edge by a token
    for (int i = 0; i < kSize; ++i) differing += left[i] != (expected[i] > 0) ? 1 : 0;
    EXPECT_LE(differing, row.top_k > 0 ? 0 : 3);
  }
}

TEST(SamplingFilters, EqualLogitsAreKeptByLowestId) {
  const std::vector<float> flat(5000, 1.5f);
  const std::vector<bool> left = kept(flat, {.top_k = 7});
  EXPECT_EQ(std::count(left.begin(), left.end(), true), 7);
  EXPECT_TRUE(std::all_of(left.begin(), left.begin() + 7, [](bool b) { return b; }));
  const std::vector<bool> half = kept(flat, {.top_p = 0.5f});
  EXPECT_EQ(std::count(half.begin(), half.end(), true), 2500);
  EXPECT_TRUE(half[2499]);
}

TEST_P(SamplingTest, DrawsFollowTheDistribution) {
  const std::vector<float> logits = noises(12, 7, 1.5f);
  const std::vector<TokenBias> biases{{3, 1.0f}, {5, -std::numeric_limits<float>::infinity()}};
  const std::vector<TokenCount> counts{{0, 2}, {1, 0}, {7, 1}};
  const std::uint32_t mask[] = {0xfffffbffu};
  SampleRow penalised{.temperature = 0.8f, .repetition_penalty = 1.3f, .presence_penalty = 0.4f, .frequency_penalty = -0.2f};
  penalised.counts = counts.data();
  penalised.num_counts = 3;
  SampleRow biased{.temperature = 1.7f};
  biased.biases = biases.data();
  biased.num_biases = 2;
  biased.mask = mask;
  biased.num_allowed = 11;
  SampleRow both = penalised;
  both.biases = biases.data();
  both.num_biases = 2;
  both.min_p = 0.05f;
  for (const SampleRow& row : {SampleRow{}, SampleRow{.temperature = 0.5f}, SampleRow{.top_k = 4}, SampleRow{.top_p = 0.6f},
                               SampleRow{.typical_p = 0.5f}, penalised, biased, both}) {
    constexpr int kDraws = 20000;
    const std::vector<double> expected = reference::sampling_distribution(logits, row);
    const std::vector<int> seen = tally(logits, row, kDraws);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const double deviation = std::sqrt(kDraws * expected[i] * (1 - expected[i]));
      EXPECT_NEAR(seen[i], kDraws * expected[i], 4.5 * deviation) << i;
    }
  }
}

TEST_P(SamplingTest, Greedy) {
  std::vector<float> logits = noises(5000, 3);
  logits[4321] = 100.0f;
  EXPECT_EQ(sample_row(table(), logits, {.temperature = 0}).token, 4321);
  EXPECT_TRUE(sample_row(table(), logits, {.temperature = 0}).ok);
  SampleRow row{.temperature = 0};
  const TokenBias forbid{4321, -std::numeric_limits<float>::infinity()};
  logits[17] = 50.0f;
  row.biases = &forbid;
  row.num_biases = 1;
  EXPECT_EQ(sample_row(table(), logits, row).token, 17);
  row = {.temperature = 0};
  row.num_allowed = 4321;
  EXPECT_EQ(sample_row(table(), logits, row).token, 17);
  std::vector<std::uint32_t> mask((5000 + 31) / 32, 0);
  mask[4000 / 32] = 1u << (4000 % 32);
  row = {.temperature = 0};
  row.mask = mask.data();
  EXPECT_EQ(sample_row(table(), logits, row).token, 4000);
  row = {.temperature = 0, .frequency_penalty = 2.0f};
  const TokenCount often{4321, 40};
  row.counts = &often;
  row.num_counts = 1;
  EXPECT_EQ(sample_row(table(), logits, row).token, 17);
}

TEST_P(SamplingTest, FiniteAdjustmentsThatOverflowNeitherForbidNorDecide) {
  constexpr float kHuge = 3e38f;
  SampleRow row;
  row.temperature = 0.0f;
  const TokenBias biases[] = {{0, kHuge}, {1, kHuge}};
  row.biases = biases;
  row.num_biases = 2;
  EXPECT_TRUE(sample_row(table(), {kHuge, kHuge, 0.0f}, row).ok);
  EXPECT_EQ(sample_row(table(), {kHuge, kHuge, 0.0f}, row).token, 0);  // both are the largest number there is
  SampleRow penalised;
  penalised.temperature = 0.0f;
  penalised.repetition_penalty = 10.0f;
  const TokenCount counts[] = {{0, 1}};
  penalised.counts = counts;
  penalised.num_counts = 1;
  const SampleResult only = sample_row(table(), {-kHuge, -std::numeric_limits<float>::infinity()}, penalised);
  EXPECT_TRUE(only.ok);
  EXPECT_EQ(only.token, 0);
}

TEST_P(SamplingTest, RowsThatCannotBeDrawn) {
  const std::vector<float> fine = noises(3000, 3);
  const std::vector<std::uint32_t> nothing(94, 0);
  for (const float temperature : {0.0f, 1.0f}) {
    SampleRow row{.temperature = temperature, .logprob = true};
    EXPECT_TRUE(sample_row(table(), fine, row).ok);
    for (const int at : {0, 15, 1024, 2999}) {
      for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        std::vector<float> logits = fine;
        logits[at] = bad;
        EXPECT_FALSE(sample_row(table(), logits, row).ok) << at;
        row.num_allowed = 2000;  // what cannot be sampled has a share in the probabilities
        EXPECT_FALSE(sample_row(table(), logits, row).ok) << at;
        row.num_allowed = 0;
      }
    }
    EXPECT_FALSE(sample_row(table(), std::vector<float>(40, -std::numeric_limits<float>::infinity()), row).ok);
    row.mask = nothing.data();
    const SampleResult masked = sample_row(table(), fine, row);
    EXPECT_FALSE(masked.ok);
    EXPECT_EQ(masked.token, -1);
  }
  std::vector<float> some = fine;  // -infinity is a logit like any other
  some[0] = some[2999] = -std::numeric_limits<float>::infinity();
  EXPECT_TRUE(sample_row(table(), some, {.logprob = true}).ok);
}

TEST_P(SamplingTest, LogprobsAreThoseOfTheModel) {
  for (const int size : {1, 5, 16, 1023, 1024, 1025, 50000}) {
    const std::vector<float> logits = noises(size, size, 5.0f);
    const std::vector<double> expected = reference::log_softmax(logits);
    std::vector<int> order(size);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
    SampleRow row{.temperature = 3.0f, .top_p = 0.9f, .seed = 5, .logprob = true, .num_top = 20};
    const SampleResult result = sample_row(table(), logits, row);
    ASSERT_TRUE(result.ok);
    EXPECT_NEAR(result.logprob, expected[result.token], 2e-6 + 1e-6 * std::abs(expected[result.token]));
    for (int i = 0; i < 20; ++i) {
      if (i >= size) {
        EXPECT_EQ(result.top_tokens[i], -1);
        continue;
      }
      EXPECT_EQ(result.top_tokens[i], order[i]);
      EXPECT_NEAR(result.top_logprobs[i], expected[order[i]], 2e-6 + 1e-6 * std::abs(expected[order[i]]));
    }
    expect_same(result, sample_row(portable(), logits, row));
  }
}

TEST_P(SamplingTest, AlternativesWithTies) {
  std::vector<float> logits(3000, 0.0f);
  for (const int i : {5, 700, 701, 2999}) logits[i] = 2.0f;
  logits[1500] = 3.0f;
  SampleRow row{.temperature = 0, .num_top = 7};
  SampleResult result = sample_row(table(), logits, row);
  EXPECT_EQ(std::vector<int>(result.top_tokens, result.top_tokens + 7), (std::vector<int>{1500, 5, 700, 701, 2999, 0, 1}));
  row.num_allowed = 1000;
  result = sample_row(table(), logits, row);
  EXPECT_EQ(std::vector<int>(result.top_tokens, result.top_tokens + 7), (std::vector<int>{5, 700, 701, 0, 1, 2, 3}));
}

TEST_P(SamplingTest, TargetsOfPromptRows) {
  const std::vector<float> logits = noises(100, 1);
  SampleRow row{.draw = false, .target = 42, .logprob = true};
  const SampleResult result = sample_row(table(), logits, row);
  EXPECT_TRUE(result.ok);
  EXPECT_EQ(result.token, 42);
  EXPECT_NEAR(result.logprob, reference::log_softmax(logits)[42], 2e-6);
  for (const int target : {-1, 100, std::numeric_limits<int>::max()}) {
    row.target = target;
    EXPECT_FALSE(sample_row(table(), logits, row).ok);
  }
}

TEST_P(SamplingTest, FastPathsGiveWhatTheGeneralPathGives) {
  constexpr int kSize = 5000;
  const std::vector<float> logits = noises(kSize, 11, 2.0f);
  const std::vector<std::uint32_t> all((kSize + 31) / 32, ~0u);
  for (std::uint32_t counter = 0; counter < 50; ++counter) {
    for (const float temperature : {0.0f, 1.0f}) {
      const SampleRow plain{.temperature = temperature, .seed = 3, .counter = counter, .logprob = true};
      const SampleResult expected = sample_row(table(), logits, plain);
      SampleRow general = plain;
      general.mask = all.data();
      general.top_k = kSize - 1;  // takes away the least likely token alone
      general.min_p = 1e-30f;
      general.top_p = std::nextafter(1.0f, 0.0f);
      const SampleResult result = sample_row(table(), logits, general);
      EXPECT_EQ(result.token, expected.token);
      EXPECT_EQ(result.logprob, expected.logprob);
    }
  }
}

TEST_P(SamplingTest, BitsOfThePortableVariant) {
  for (std::uint32_t i = 0; i < 60; ++i) {
    const std::vector<float> logits = noises(1 + hash(i) % 4000, i, 3.0f);
    SampleRow row{.temperature = 0.3f + 0.1f * static_cast<float>(i % 20), .seed = i, .logprob = true, .num_top = 3};
    if (i % 2 != 0) row.top_p = 0.8f;
    if (i % 3 != 0) row.typical_p = 0.9f;
    expect_same(sample_row(table(), logits, row), sample_row(portable(), logits, row));
  }
}

TEST_P(SamplingTest, RowsAreIndependent) {
  constexpr int kRows = 37;
  std::vector<std::vector<float>> logits;
  std::vector<SampleRow> rows;
  for (int i = 0; i < kRows; ++i) {
    logits.push_back(noises(2000, i));
    rows.push_back({.temperature = i % 3 == 0 ? 0.0f : 1.0f,
                    .top_k = i % 5,
                    .seed = 9u,
                    .stream = static_cast<std::uint32_t>(i),
                    .logprob = true,
                    .num_top = i % 4});
  }
  logits[5][3] = NAN;  // one request's failure
  for (const int threads : {1, 4}) {
    const std::vector<SampleResult> together = sample_rows(table(), logits, rows, threads);
    for (int i = 0; i < kRows; ++i) expect_same(together[i], sample_row(table(), logits[i], rows[i]));
  }
}

TEST_P(PeerBugs, B091_SeedCountsBesideUnseededRows) {
  const std::vector<float> logits = noises(500, 1);
  const SampleRow seeded{.seed = 77, .counter = 4};
  const int expected = sample_row(table(), logits, seeded).token;
  for (std::size_t neighbours = 0; neighbours <= 7; ++neighbours) {
    for (std::size_t place = 0; place <= neighbours; ++place) {
      std::vector<SampleRow> rows;
      for (std::size_t i = 0; i <= neighbours; ++i) rows.push_back(i == place ? seeded : SampleRow{.seed = hash(i)});
      EXPECT_EQ(sample_rows(table(), std::vector(neighbours + 1, logits), rows, 2)[place].token, expected);
    }
  }
}

TEST_P(PeerBugs, B092_SameSeedSameTokensAndStreamsDiffer) {
  const std::vector<float> flat(100000, 0.0f);
  std::vector<SampleRow> rows(2, SampleRow{.seed = 5});
  for (std::uint32_t stream = 0; stream < 4; ++stream) rows.push_back({.seed = 5, .stream = stream});
  const std::vector<SampleResult> results = sample_rows(table(), std::vector(6, flat), rows);
  EXPECT_EQ(results[0].token, results[1].token);
  EXPECT_EQ(results[0].token, results[2].token);
  for (int a = 2; a < 6; ++a) {
    for (int b = a + 1; b < 6; ++b) EXPECT_NE(results[a].token, results[b].token);
  }
}

TEST_P(PeerBugs, B094_TiesAtTheBoundaryOfTopK) {
  const std::vector<int> seen = tally(log_of({.4f, .3f, .3f, 0.0f}), {.top_k = 2}, 500);
  EXPECT_GT(seen[0], 0);
  EXPECT_GT(seen[1], 0);
  EXPECT_EQ(seen[2] + seen[3], 0);
  const std::vector<int> tied = tally(std::vector<float>(8, 1.0f), {.top_k = 5}, 500);
  EXPECT_EQ(tied[5] + tied[6] + tied[7], 0);
  EXPECT_GT(*std::min_element(tied.begin(), tied.begin() + 5), 0);
  const std::vector<int> top_p = tally(log_of({.4f, .3f, .3f}), {.top_p = 0.6f}, 500);
  EXPECT_EQ(top_p[2], 0);
  EXPECT_GT(top_p[1], 0);
}

TEST_P(PeerBugs, B095_SmallTopKThenTopP) {
  std::vector<float> logits = noises(1000, 2, 0.01f);  // every probability is far below top_p
  const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
  for (const float temperature : {0.01f, 1.0f, 100.0f}) {
    const SampleRow row{.temperature = temperature, .top_k = 1, .top_p = 0.8f, .min_p = 0.5f, .typical_p = 0.5f};
    EXPECT_EQ(tally(logits, row, 50)[best], 50);
  }
  // Of two equal tokens that top_k leaves, renormalised, 0.5 reaches top_p = 0.5 with the first alone.
  const std::vector<int> seen = tally(std::vector<float>(100, 0.0f), {.top_k = 2, .top_p = 0.5f}, 100);
  EXPECT_EQ(seen[0], 100);
}

TEST(PeerBugsOfTheDraw, B097_OnlyTokensWithProbabilityAreDrawn) {
  constexpr int kSize = 3000;
  std::vector<float> logits(kSize, 0.0f), weights(kSize, 0.0f);
  for (int i = 100; i < 2900; i += 3) weights[i] = i % 2 == 0 ? 0.1f : 1e-30f;
  // Sums that rounding has put a little above and below those of the weights.
  for (const double error : {-1e-6, 0.0, 1e-6}) {
    std::vector<double> sums(3, 0.0);
    for (int i = 0; i < kSize; ++i) sums[i / cpu::kDrawBlock] += weights[i];
    for (double& sum : sums) sum *= 1.0 + error;
    const cpu::Distribution distribution{logits.data(), weights.data(), kSize};
    const auto check = [&](double u) {
      const std::int32_t token = cpu::draw(distribution, sums.data(), u);
      ASSERT_GE(token, 0);
      ASSERT_GT(weights[token], 0.0f) << u;
    };
    check(0.0);
    check(std::nextafter(1.0, 0.0));
    for (std::uint32_t i = 0; i < 20000; ++i) check(cpu::uniform(1, 0, i));
  }
}

TEST_P(PeerBugs, B098_EqualMaximaGoToTheLowestId) {
  std::vector<float> logits = noises(3000, 4, 0.1f);
  logits[5] = logits[9] = logits[2500] = 7.0f;
  std::vector<std::uint32_t> all(94, ~0u);
  for (const float temperature : {0.0f, 1e-6f}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      SampleRow row{.temperature = temperature, .seed = seed};
      EXPECT_EQ(sample_row(table(), logits, row).token, 5);
      row.mask = all.data();
      EXPECT_EQ(sample_row(table(), logits, row).token, 5);
      EXPECT_EQ(sample_rows(table(), std::vector(5, logits), std::vector(5, row), 2)[3].token, 5);
    }
  }
  EXPECT_EQ(sample_row(table(), {-0.0f, 0.0f, 0.0f}, {.temperature = 0}).token, 0);
}

TEST_P(PeerBugs, B100_ForbiddingATokenChangesNoOther) {
  const std::vector<float> logits = noises(64, 3);
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<TokenBias> none{{-1, -infinity}};  // no end token: not the vocabulary's last
  SampleRow row{};
  row.biases = none.data();
  row.num_biases = 1;
  EXPECT_EQ(tally(logits, row, 2000), tally(logits, {}, 2000));
  const std::vector<TokenBias> end{{7, -infinity}};
  row.biases = end.data();
  const std::vector<int> seen = tally(logits, row, 2000);
  EXPECT_EQ(seen[7], 0);
  EXPECT_GT(seen[63], 0);
  row.logprob = true;
  SampleRow plain{.logprob = true};
  plain.draw = row.draw = false;
  plain.target = row.target = 7;
  EXPECT_EQ(sample_row(table(), logits, row).logprob, sample_row(table(), logits, plain).logprob);
}

TEST_P(PeerBugs, B106_TokensOutsideTheVocabularyTouchNothing) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<TokenBias> biases{{-1, 50.0f},
                                      {64, 50.0f},
                                      {std::numeric_limits<std::int32_t>::max(), -infinity},
                                      {std::numeric_limits<std::int32_t>::min(), 50.0f}};
  const std::vector<TokenCount> counts{{-1, 3}, {64, 3}, {std::numeric_limits<std::int32_t>::max(), 1}};
  SampleRow row{.repetition_penalty = 5.0f, .presence_penalty = 2.0f};
  row.biases = biases.data();
  row.num_biases = 4;
  row.counts = counts.data();
  row.num_counts = 3;
  const std::vector<std::vector<float>> logits{noises(64, 3), noises(64, 4), noises(64, 5)};
  for (std::uint32_t counter = 0; counter < 100; ++counter) {
    row.counter = counter;
    const SampleRow plain{.counter = counter};
    const std::vector<SampleResult> results = sample_rows(table(), logits, {row, plain, row});
    for (int i = 0; i < 3; ++i) EXPECT_EQ(results[i].token, sample_row(table(), logits[i], plain).token);
  }
}

}  // namespace
}  // namespace quire::testing
