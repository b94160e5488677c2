// Which bits the CUDA attention kernels give: the same under every schedule of the emulator, and in deterministic mode the same
// for a row however it is batched, chunked, placed and launched.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/kernels/cuda/attention_problem.h"
#include "tests/support/cpu_variants.h"
#include "tests/support/simt/emulator.h"

namespace quire::testing {
namespace {

using cuda::SplitRule;

constexpr AttentionRun kDeterministic{.rule = SplitRule::kDeterministic, .num_sms = 1000};

// Rows [begin, end) of an output of the problem.
std::vector<float> rows(const std::vector<float>& out, const AttentionCase& problem, int begin, int end) {
  const int width = problem.num_heads * problem.head_size;
  return {out.begin() + begin * width, out.begin() + end * width};
}

class AttentionSchedules : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(HeadSizes, AttentionSchedules, ::testing::Values(64, 80, 96, 128, 256));

TEST_P(AttentionSchedules, ChangeNoBit) {
  // Decode: each warp's ring is filled three times; prefill: more tiles than stages.
  const AttentionCase problem{.sequences = {{1, 1, 1600}, {2, 40, 330}},
                              .num_heads = 3,
                              .num_kv_heads = 1,
                              .head_size = GetParam(),
                              .window = 1540,
                              .softcap = 20.0f};
  for (const AttentionKernel kernel : {AttentionKernel::kPrefill, AttentionKernel::kDecode}) {
    for (const int num_sms : {1, 1000}) {
      DeviceAttention attention(problem);
      if (num_sms > 1) {
        EXPECT_FALSE(attention.plan({.kernel = kernel, .num_sms = num_sms}).combines.empty());
      }
      std::vector<float> first;
      for (const simt::Options& options : simt::all_schedules()) {
        const simt::ScopedOptions scoped(options);
        const std::vector<float> out = attention.run({.kernel = kernel, .num_sms = num_sms});
        if (first.empty()) {
          first = out;
          EXPECT_TRUE(near(out, attention.expected(), 1e-3, 1e-3));
        }
        EXPECT_TRUE(same_bits(out, first)) << options;
      }
    }
  }
}

// A sequence's rows [begin, end) in one chunk, and then otherwise; all of these are to have the same bits.
class DeterministicAttention : public ::testing::Test {
 protected:
  void check(AttentionCase problem, int begin, int end) const {
    const PagedSequence whole{7, end - begin, end};
    problem.sequences = {whole};
    const std::vector<float> expected = run_attention(problem, kDeterministic);
    const double error = problem.dtype == DType::kBF16 ? 1.0 / 128 : 1.0 / 1024;
    EXPECT_TRUE(near(expected, DeviceAttention(problem).expected(), error, error));
    check_chunks(problem, begin, end, expected);
    check_batches(problem, whole, expected);
    check_launches(problem, expected);
  }

 private:
  void check_chunks(AttentionCase problem, int begin, int end, const std::vector<float>& expected) const {
    for (const int chunk : {1, 23}) {
      for (int first = begin; first < end; first += chunk) {
        const int last = std::min(end, first + chunk);
        problem.sequences = {{7, last - first, last}};
        EXPECT_TRUE(same_bits(run_attention(problem, kDeterministic), rows(expected, problem, first - begin, last - begin)))
            << "rows " << first << " to " << last;
      }
    }
  }
  void check_batches(AttentionCase problem, const PagedSequence& whole, const std::vector<float>& expected) const {
    problem.sequences = {{1, 3, 50}, {2, 1, 2100}, whole, {3, 64, 64}};
    const std::vector<float> out = run_attention(problem, kDeterministic);
    EXPECT_TRUE(same_bits(rows(out, problem, 4, 4 + whole.num_new), expected));
  }
  void check_launches(AttentionCase problem, const std::vector<float>& expected) const {
    for (const int block_size : {8, 24, 64, 256}) {
      problem.block_size = block_size;
      problem.placement = static_cast<std::uint64_t>(block_size);
      EXPECT_TRUE(same_bits(run_attention(problem, kDeterministic), expected)) << block_size;
    }
    AttentionRun large = kDeterministic;
    large.num_sms = 1;
    EXPECT_TRUE(same_bits(run_attention(problem, large), expected)) << "large tile";
    AttentionRun few_rows_in_large = kDeterministic;
    few_rows_in_large.row_tile = cuda::has_large_prefill_tile(problem.head_size) ? cuda::kLargePrefillTile : 0;
    EXPECT_TRUE(same_bits(run_attention(problem, few_rows_in_large), expected)) << "small items in the large tile";
    AttentionRun waves = kDeterministic;
    waves.workspace_bytes = cuda::partial_bytes(3 * 64 * problem.num_kv_heads, problem.head_size);
    EXPECT_TRUE(same_bits(run_attention(problem, waves), expected)) << "little workspace";
  }
};

TEST_F(DeterministicAttention, FromTheBeginning) {
  check({.sequences = {}, .num_heads = 6, .num_kv_heads = 2}, 0, 75);
  check({.sequences = {}, .num_heads = 5, .num_kv_heads = 1, .head_size = 128, .window = 20}, 0, 75);
  check({.sequences = {}, .num_heads = 2, .num_kv_heads = 2, .head_size = 256, .softcap = 10.0f, .dtype = DType::kBF16}, 0, 40);
}

TEST_F(DeterministicAttention, AcrossASegment) {
  check({.sequences = {}, .num_heads = 3, .num_kv_heads = 1}, 2040, 2056);
  check({.sequences = {}, .num_heads = 2, .num_kv_heads = 1, .head_size = 96}, 4092, 4100);
}

TEST_F(DeterministicAttention, WindowsAcrossASegment) {
  // Of one tile's rows some see one segment, some the other, some both; 2,048 sees none of the first.
  check({.sequences = {}, .num_heads = 3, .num_kv_heads = 1, .window = 30}, 2040, 2082);
  check({.sequences = {}, .num_heads = 2, .num_kv_heads = 1, .head_size = 128, .window = 1}, 2040, 2060);
  check({.sequences = {}, .num_heads = 2, .num_kv_heads = 1, .window = 2049}, 4090, 4110);
}

// A prompt computed whole, and its end computed on a cached beginning.
TEST(PeerBugs, B080_B089_APrefixHitChangesNoBit) {
  AttentionCase problem{.sequences = {{7, 200, 200}}, .num_heads = 4, .num_kv_heads = 2};
  const std::vector<float> cold = run_attention(problem, kDeterministic);
  for (const int hit : {16, 64, 100, 199}) {
    problem.sequences = {{7, 200 - hit, 200}};
    EXPECT_TRUE(same_bits(run_attention(problem, kDeterministic), rows(cold, problem, hit, 200))) << hit;
  }
}

}  // namespace
}  // namespace quire::testing
