// Sampling on the device against the CPU: the same tokens from the same logits and seeds. Edges: sampling_edges_test.cc.
#include "tests/kernels/cuda/sampling_problem.h"

#include <cmath>
#include <limits>

namespace quire::testing {
namespace {

// Rows that use every parameter, alone and together; what they point to lives as long as this.
class ManyRows {
 public:
  explicit ManyRows(int vocabulary) : mask_((vocabulary + 31) / 32) {
    for (std::size_t i = 0; i < mask_.size(); ++i) mask_[i] = static_cast<std::uint32_t>(hash(i)) | 1u;
    for (int i = 0; i < 40; ++i) {
      counts_.push_back({static_cast<std::int32_t>(i * 37 % vocabulary) + (i >= vocabulary ? vocabulary : 0), i % 4});
      biases_.push_back({static_cast<std::int32_t>(i * 11 % vocabulary) + (i >= vocabulary ? vocabulary : 0), noise(i, 3.0f)});
    }
    biases_[3].bias = -kInfinity;
    counts_.push_back({-1, 3});
    biases_.push_back({std::numeric_limits<std::int32_t>::max(), 50.0f});
    add({});
    add({.temperature = 0.0f});
    add({.temperature = 0.7f});
    add({.top_k = 1});
    add({.top_k = 40});
    add({.top_p = 0.1f});
    add({.top_p = 0.9f});
    add({.top_p = std::nextafter(1.0f, 0.0f)});
    add({.min_p = 0.1f});
    add({.min_p = 1.0f});
    add({.typical_p = 0.2f});
    add({.typical_p = 0.9f});
    add({.temperature = 1.5f, .top_k = 30, .top_p = 0.8f, .min_p = 0.05f, .typical_p = 0.7f});
    SampleRow penalised{.repetition_penalty = 1.3f, .presence_penalty = 0.4f, .frequency_penalty = -0.2f};
    penalised.counts = counts_.data();
    penalised.num_counts = static_cast<int>(counts_.size());
    add(penalised);
    SampleRow all = penalised;
    all.biases = biases_.data();
    all.num_biases = static_cast<int>(biases_.size());
    all.mask = mask_.data();
    all.num_allowed = vocabulary - vocabulary / 5;
    add(all);
    all.temperature = 0.0f;
    add(all);
    all.temperature = 0.9f;
    all.top_p = 0.95f;
    add(all);
  }

  // Each with another seed; logprobs with a varying number of alternatives.
  const std::vector<SampleRow>& rows() const { return rows_; }

 private:
  void add(SampleRow row) {
    const auto i = static_cast<std::uint32_t>(rows_.size());
    row.seed = hash(i);
    row.stream = i % 3;
    row.counter = i * 7;
    row.logprob = i % 4 != 3;
    row.num_top = static_cast<int>(i % 4) * 6;
    rows_.push_back(row);
  }

  std::vector<std::uint32_t> mask_;
  std::vector<TokenCount> counts_;
  std::vector<TokenBias> biases_;
  std::vector<SampleRow> rows_;
};

TEST(CudaSampling, EqualsTheCpuWithEveryParameter) {
  for (const int size : {1, 2, 31, 576, 1023, 1024, 1025, 3000, 33000}) {
    const ManyRows many(size);
    Logits logits;
    for (std::size_t r = 0; r < many.rows().size(); ++r) {
      logits.push_back(noises(size, r + 100 * size, r % 3 == 0 ? 1.0f : 4.0f));
      if (r % 4 == 3) {
        for (float& x : logits.back()) x = std::round(x * 2);  // many ties
      }
    }
    EXPECT_TRUE(equals_cpu(logits, many.rows())) << size;
  }
}

TEST(CudaSampling, EqualsTheCpuInManyDraws) {
  constexpr int kSize = 1500, kDraws = 300;
  Logits logits(kDraws, noises(kSize, 5, 3.0f));
  std::vector<SampleRow> rows(kDraws);
  for (std::uint32_t i = 0; i < kDraws; ++i) {
    rows[i] = {.temperature = 0.3f + 0.1f * static_cast<float>(i % 20), .seed = 9, .counter = i};
    if (i % 2 != 0) rows[i].top_p = 0.7f;
    if (i % 3 == 0) rows[i].typical_p = 0.8f;
    if (i % 5 == 0) rows[i].top_k = 20;
  }
  EXPECT_TRUE(equals_cpu(logits, rows));
}

TEST(CudaSampling, EqualLogitsAreKeptByLowestId) {
  constexpr std::uint32_t kRows = 30;
  const Logits flat(kRows, std::vector<float>(3000, 1.5f));
  std::vector<SampleRow> rows(kRows);
  for (std::uint32_t i = 0; i < kRows; ++i) {
    rows[i] = {.counter = i};
    if (i % 2 == 0) rows[i].top_k = 7;
    if (i % 2 == 1) rows[i].top_p = 0.5f;
  }
  const std::vector<SampleResult> results = sample_on_device(flat, rows);
  for (std::size_t i = 0; i < kRows; ++i) EXPECT_LT(results[i].token, i % 2 == 0 ? 7 : 1500);
  EXPECT_TRUE(equals_cpu(flat, rows));
}

TEST(CudaSampling, NegativeZeroTiesWithZero) {
  std::vector<float> logits(3000, -1.0f);
  logits[30] = -0.0f;
  for (const int i : {60, 542, 1054, 2078}) logits[i] = 0.0f;  // some of them met by the same thread
  const SampleRow greedy{.temperature = 0.0f, .num_top = 3};
  const SampleResult result = sample_on_device({logits}, {greedy})[0];
  EXPECT_EQ(result.token, 30);
  EXPECT_TRUE(equals_cpu({logits}, {greedy}));
  for (std::uint32_t i = 0; i < 10; ++i) {
    EXPECT_EQ(sample_on_device({logits}, {{.top_k = 1, .counter = i}})[0].token, 30);
  }
}

TEST(CudaSampling, RowsThatCannotBeDrawn) {
  const std::vector<float> fine = noises(3000, 3);
  const std::vector<std::uint32_t> nothing(94, 0);
  Logits logits;
  std::vector<SampleRow> rows;
  for (const float temperature : {0.0f, 1.0f}) {
    SampleRow row{.temperature = temperature, .logprob = true};
    for (const int at : {0, 15, 1024, 2999}) {
      for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(), kInfinity}) {
        for (const int allowed : {0, 2000}) {
          logits.push_back(fine);
          logits.back()[at] = bad;
          row.num_allowed = allowed;
          rows.push_back(row);
        }
      }
    }
    row.num_allowed = 0;
    logits.push_back(std::vector<float>(3000, -kInfinity));
    rows.push_back(row);
    row.mask = nothing.data();
    logits.push_back(fine);
    rows.push_back(row);
  }
  for (const SampleResult& result : sample_on_device(logits, rows)) {
    EXPECT_FALSE(result.ok);
    EXPECT_EQ(result.token, -1);
  }
  EXPECT_TRUE(equals_cpu(logits, rows));
  std::vector<float> some = fine;  // -infinity is a logit like any other
  some[0] = some[2999] = -kInfinity;
  EXPECT_TRUE(sample_on_device({some}, {{.logprob = true}})[0].ok);
}

// The logprob of a token of weight 1 beside one of weight w is -log(1 + w), which shows the bits of a small w: the two lie in
// different blocks and are added in double.
TEST(CudaSampling, ExponentialsHaveTheBitsOfTheCpu) {
  constexpr int kCases = 400;
  Logits logits;
  for (int i = 0; i < kCases; ++i) {
    logits.push_back(std::vector<float>(1025, -kInfinity));
    logits.back()[0] = 0.0f;
    logits.back()[1024] = i < 300 ? -0.05f * static_cast<float>(i + 1) : noise(i, 1.0f) - 5.0f;
  }
  const std::vector<SampleRow> rows(kCases, {.draw = false, .target = 0, .logprob = true});
  const std::vector<SampleResult> device = sample_on_device(logits, rows), cpu = sample_on_cpu(logits, rows);
  for (int i = 0; i < kCases; ++i) EXPECT_EQ(device[i].logprob, cpu[i].logprob) << logits[i][1024];
}

TEST(CudaSampling, BiasesComeBeforePenaltiesAndMayForbid) {
  // Token 3: (0 + 4) / 2, below token 5's 3; the other order would give 4. Other threads' work at either.
  std::vector<TokenBias> biases(41, {60, -1.0f});
  std::vector<TokenCount> counts(41, {61, 0});
  biases[0] = {5, 3.0f}, biases[40] = {3, 4.0f};
  for (const std::size_t place : {std::size_t{0}, std::size_t{40}}) {
    counts.assign(41, {61, 0});
    counts[place] = {3, 1};
    SampleRow row{.temperature = 0.0f, .repetition_penalty = 2.0f};
    row.biases = biases.data(), row.num_biases = 41;
    row.counts = counts.data(), row.num_counts = 41;
    for (const simt::Options& options : simt::all_schedules()) {
      const simt::ScopedOptions scope(options);
      EXPECT_EQ(sample_on_device({std::vector<float>(64, 0.0f)}, {row})[0].token, 5) << options << ", " << place;
    }
  }
  const TokenCount seen[] = {{7, 1}};
  SampleRow penalised{.temperature = 0.0f, .repetition_penalty = 2.0f};
  penalised.counts = seen, penalised.num_counts = 1;
  std::vector<float> negative(64, -10.0f);
  negative[7] = -1.0f, negative[8] = -1.5f;  // -1 becomes -2, not -0.5
  EXPECT_EQ(sample_on_device({negative}, {penalised})[0].token, 8);
  const TokenBias forbidden[] = {{0, -kInfinity}, {1, -kInfinity}};
  SampleRow none;
  none.biases = forbidden, none.num_biases = 2;
  EXPECT_FALSE(sample_on_device({{1.0f, 2.0f}}, {none})[0].ok);
}

TEST(CudaSampling, AdjustmentsThatOverflowStayFinite) {
  constexpr float kHuge = 3e38f;
  const TokenBias biases[] = {{0, kHuge}, {1, kHuge}};
  SampleRow biased{.temperature = 0.0f};
  biased.biases = biases;
  biased.num_biases = 2;
  const TokenCount counts[] = {{0, 1}};
  SampleRow penalised{.temperature = 0.0f, .repetition_penalty = 10.0f};
  penalised.counts = counts;
  penalised.num_counts = 1;
  const Logits logits{{kHuge, kHuge, 0.0f}, {-kHuge, -kInfinity, -kInfinity}};
  EXPECT_TRUE(equals_cpu(logits, {biased, penalised}));
  EXPECT_TRUE(sample_on_device(logits, {biased, penalised})[1].ok);
}

TEST(CudaSampling, AlternativesAndTargets) {
  std::vector<float> ties(3000, 0.0f);
  for (const int i : {5, 700, 701, 2999}) ties[i] = 2.0f;
  ties[1500] = 3.0f;
  std::vector<float> few(3000, -kInfinity);
  few[7] = few[2000] = 1.0f;
  Logits logits;
  std::vector<SampleRow> rows;
  for (const int count : {1, 2, 7, 20}) {
    for (const int allowed : {0, 1000, 3}) {
      for (const auto& row : {ties, few, noises(3000, 9)}) {
        logits.push_back(row);
        rows.push_back({.num_allowed = allowed, .draw = false, .target = 42, .num_top = count});
      }
    }
  }
  for (const int target : {-1, 0, 2999, 3000, std::numeric_limits<int>::max()}) {
    logits.push_back(ties);
    rows.push_back({.draw = false, .target = target, .logprob = true});
  }
  EXPECT_TRUE(equals_cpu(logits, rows));
  EXPECT_TRUE(sample_on_device(logits, rows)[0].ok);
  EXPECT_FALSE(sample_on_device(logits, rows).back().ok);
}

TEST(CudaSampling, ARowsResultIsItsOwnInEverySchedule) {
  constexpr int kSize = 1100;
  const ManyRows many(kSize);
  Logits logits;
  for (std::size_t r = 0; r < 9; ++r) logits.push_back(noises(kSize, r));
  const std::vector<SampleRow> rows(many.rows().end() - 9, many.rows().end());
  const std::vector<SampleResult> all = sample_on_device(logits, rows);
  for (const simt::Options& options : simt::all_schedules()) {
    const simt::ScopedOptions scope(options);
    const std::vector<SampleResult> again = sample_on_device(logits, rows);
    for (int r = 0; r < 9; ++r) EXPECT_TRUE(same_result(again[r], all[r])) << options << ", row " << r;
  }
  for (int r = 0; r < 9; ++r) EXPECT_TRUE(same_result(sample_on_device({logits[r]}, {rows[r]})[0], all[r])) << r;
}

TEST(CudaSampling, LargeVocabulary) {
  constexpr int kSize = 262144;
  const Logits logits(4, noises(kSize, 1, 3.0f));
  EXPECT_TRUE(equals_cpu(logits, {{.seed = 4, .num_top = 20},
                                  {.top_k = 1000, .seed = 5},
                                  {.temperature = 0.8f, .top_p = 0.9f, .seed = 6, .logprob = true},
                                  {.typical_p = 0.9f, .seed = 7}}));
}

TEST(PackSampleRows, KeepsEveryField) {
  const TokenCount counts[] = {{4, 2}, {9, 0}, {1, 7}};
  const TokenBias biases[] = {{3, 0.5f}};
  const std::uint32_t mask[] = {0xabcdu, 0x1234u, 0x5555u};
  SampleRow full{0.5f, 3, 0.9f, 0.1f, 0.8f, 1.2f, 0.3f, -0.4f};
  full.counts = counts, full.num_counts = 3, full.biases = biases, full.num_biases = 1, full.mask = mask;
  full.num_allowed = 33, full.seed = 12, full.stream = 3, full.counter = 5;
  full.draw = false, full.target = 17, full.logprob = true, full.num_top = 9;
  const SampleRow rows[] = {SampleRow{}, full, full};
  std::vector<std::byte> packed;
  cuda::pack_sample_rows(rows, 3, 96, packed);
  const auto* out = reinterpret_cast<const cuda::DeviceSampleRow*>(packed.data());
  EXPECT_EQ(out[0].num_allowed, 96);
  EXPECT_EQ(out[0].mask_at, 0);
  EXPECT_EQ(out[0].draw, 1);
  std::int64_t end = 3 * std::int64_t{sizeof *out};
  for (int r = 1; r < 3; ++r) {
    const cuda::DeviceSampleRow& row = out[r];
    EXPECT_EQ(std::vector<float>({row.temperature, row.top_p, row.min_p, row.typical_p, row.repetition_penalty,
                                  row.presence_penalty, row.frequency_penalty}),
              std::vector<float>({0.5f, 0.9f, 0.1f, 0.8f, 1.2f, 0.3f, -0.4f}));
    EXPECT_EQ(std::vector<int>(
                  {row.top_k, row.num_counts, row.num_biases, row.num_allowed, row.target, row.num_top, row.draw, row.logprob}),
              std::vector<int>({3, 3, 1, 33, 17, 9, 0, 1}));
    EXPECT_TRUE(row.uniform >= 0.0 && row.uniform < 1.0);
    EXPECT_EQ(row.counts_at, end);
    EXPECT_EQ(row.biases_at, end + 24);
    EXPECT_EQ(row.mask_at, end + 32);  // two words: of 33 tokens
    EXPECT_EQ(std::memcmp(packed.data() + row.counts_at, counts, sizeof counts), 0);
    EXPECT_EQ(std::memcmp(packed.data() + row.biases_at, biases, sizeof biases), 0);
    EXPECT_EQ(std::memcmp(packed.data() + row.mask_at, mask, 8), 0);
    end += 40;
  }
  EXPECT_EQ(packed.size(), static_cast<std::size_t>(end));
  EXPECT_NE(out[0].uniform, out[1].uniform);
  cuda::pack_sample_rows(rows, 0, 96, packed);
  EXPECT_TRUE(packed.empty());
}

// ---- faults that peers' users reported

TEST(PeerBugs, B068_OnlyVeryUnlikelyTokens) {
  std::vector<float> logits(1500, -1e5f);
  logits[700] = -99998.0f;
  for (const float temperature : {0.0f, 0.01f, 1.0f}) {
    const SampleRow row{.temperature = temperature, .top_p = 0.5f, .logprob = true};
    const SampleResult result = sample_on_device({logits}, {row})[0];
    EXPECT_TRUE(result.ok && result.token >= 0);
    EXPECT_TRUE(equals_cpu({logits}, {row})) << temperature;
  }
}

TEST(PeerBugs, B091_B092_ASeedIsItsRowsAlone) {
  const Logits same(8, noises(1100, 4, 2.0f));
  std::vector<SampleRow> alone;
  for (std::uint32_t i = 0; i < 8; ++i) alone.push_back({.seed = 77, .counter = i % 4});
  const std::vector<SampleResult> expected = sample_on_device(same, alone);
  for (int r = 0; r < 4; ++r) EXPECT_EQ(expected[r].token, expected[r + 4].token) << "one seed twice in a batch";
  for (std::uint32_t place = 0; place < 8; ++place) {
    std::vector<SampleRow> rows(8);
    for (std::uint32_t i = 0; i < 8; ++i) rows[i].seed = 1000 + i;
    rows[place] = alone[2];
    EXPECT_EQ(sample_on_device(same, rows)[place].token, expected[2].token) << place;
  }
}

TEST(PeerBugs, B094_TiesAtTheLimitGoToTheLowerIds) {
  std::vector<float> few(1100, -kInfinity), five(1100, 0.0f);
  few[0] = std::log(0.4f), few[1] = few[2] = std::log(0.3f);
  for (const int id : {30, 31, 640, 900, 1099}) five[id] = 5.0f;
  Logits logits;
  std::vector<SampleRow> rows;
  for (std::uint32_t i = 0; i < 64; ++i) {
    logits.push_back(i % 2 == 0 ? few : five);
    rows.push_back({.top_k = i % 2 == 0 ? 2 : 3, .seed = 3, .counter = i});
  }
  const std::vector<SampleResult> batch = sample_on_device(logits, rows);
  for (std::uint32_t i = 0; i < 64; ++i) {
    EXPECT_TRUE(i % 2 == 0 ? batch[i].token < 2 : batch[i].token == 30 || batch[i].token == 31 || batch[i].token == 640) << i;
    if (i < 8) {
      EXPECT_EQ(sample_on_device({logits[i]}, {rows[i]})[0].token, batch[i].token) << "alone";
    }
  }
}

TEST(PeerBugs, B095_OneTokenIsNeverNone) {
  std::vector<float> logits = noises(1100, 4);
  logits[1024] = 9.0f;
  for (std::uint32_t i = 0; i < 8; ++i) {
    const SampleRow row{.temperature = 0.01f, .top_k = 1, .top_p = 0.8f, .min_p = 0.5f, .typical_p = 0.5f, .counter = i};
    EXPECT_EQ(sample_on_device({logits}, {row})[0].token, 1024);
  }
}

TEST(PeerBugs, B097_TheEndsOfTheDrawFindATokenWithWeight) {
  std::vector<float> logits(1100, -kInfinity);
  for (int id = 1; id < 1000; ++id) logits[id] = noise(id);
  logits[0] = logits[1001] = -104.5f;  // weight 0
  const DeviceTensor view(DType::kF32, {1, 1100}, logits), scratch(DType::kF32, {1, 1100});
  for (const double uniform : {0.0, std::nextafter(1.0, 0.0)}) {
    cuda::DeviceSampleRow row;
    row.num_allowed = 1100;
    row.uniform = uniform;
    const simt::DeviceBuffer<cuda::DeviceSampleRow> rows(std::vector<cuda::DeviceSampleRow>{row});
    const simt::DeviceBuffer<SampleResult> results(1);
    cuda::sample({view, rows.data(), scratch.view().as<float>(), results.data()}, nullptr);
    EXPECT_EQ(results[0].token, uniform == 0.0 ? 1 : 999);
  }
}

TEST(PeerBugs, B098_TheLowestOfEqualMaxima) {
  std::vector<float> logits = noises(1100, 4);
  logits[5] = logits[9] = 20.0f;
  const Logits batch(5, logits);
  for (const float temperature : {0.0f, 1e-6f}) {
    const SampleRow greedy{.temperature = temperature};
    EXPECT_EQ(sample_on_device({logits}, {greedy})[0].token, 5);
    for (const SampleResult& result : sample_on_device(batch, std::vector<SampleRow>(5, greedy))) EXPECT_EQ(result.token, 5);
  }
}

TEST(CudaSamplingArguments, AreRefusedByName) {
  const DeviceTensor half(DType::kF16, {2, 10}), vector(DType::kF32, {10});
  EXPECT_ERROR(cuda::sample({half, nullptr, nullptr, nullptr}, nullptr), ErrorCode::kInvalidArgument, "sample: logits is F16");
  EXPECT_ERROR(cuda::sample({vector, nullptr, nullptr, nullptr}, nullptr), ErrorCode::kInvalidArgument, "logits is F32 [10]");
  TensorView wide = half;
  wide = TensorView(half.view().data, DType::kF32, {1, (1 << 20) + 1});
  EXPECT_ERROR(cuda::sample({wide, nullptr, nullptr, nullptr}, nullptr), ErrorCode::kUnsupported, "V is 1048577");
  std::vector<std::byte> packed;
  const SampleRow row{.num_top = 21};
  EXPECT_ERROR(cuda::pack_sample_rows(&row, 1, 10, packed), ErrorCode::kInvalidArgument, "num_top is 21");
}

}  // namespace
}  // namespace quire::testing
