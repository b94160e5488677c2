// The CUDA attention kernels, run by the emulator, against the double-precision oracle: every kernel and way to plan it over the
// shapes it supports. Every case is poisoned, see paged_layout.h. Bit equality: attention_bits_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <set>

#include "tests/kernels/cuda/attention_problem.h"
#include "tests/support/cpu_variants.h"
#include "tests/support/expect_error.h"
#include "tests/support/simt/emulator.h"

namespace quire::testing {
namespace {

using cuda::SplitRule;

struct Way {
  const char* name;
  AttentionRun run;
};
void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

class CudaAttention : public ::testing::TestWithParam<Way> {
 protected:
  void check(const AttentionCase& problem) const {
    DeviceAttention attention(problem);
    const double error = problem.dtype == DType::kBF16 ? 1.0 / 128 : 1.0 / 1024;
    EXPECT_TRUE(near(attention.run(run()), attention.expected(), error, error));
  }
  const AttentionRun& run() const { return GetParam().run; }
};
class PeerBugs : public CudaAttention {};

// A single SM takes the large tile and seldom splits; a thousand split what they can and take the small one.
const Way kWays[] = {
    {"PrefillLargeTile", {.kernel = AttentionKernel::kPrefill, .num_sms = 1}},
    {"PrefillSmallTileSplit", {.kernel = AttentionKernel::kPrefill, .num_sms = 1000}},
    {"PrefillDeterministic", {.kernel = AttentionKernel::kPrefill, .rule = SplitRule::kDeterministic, .num_sms = 1000}},
    {"Decode", {.kernel = AttentionKernel::kDecode, .num_sms = 1}},
    {"DecodeSplit", {.kernel = AttentionKernel::kDecode, .num_sms = 1000}},
};
std::string name_of(const ::testing::TestParamInfo<Way>& way) { return way.param.name; }
INSTANTIATE_TEST_SUITE_P(Emulated, CudaAttention, ::testing::ValuesIn(kWays), name_of);
INSTANTIATE_TEST_SUITE_P(Emulated, PeerBugs, ::testing::ValuesIn(kWays), name_of);

TEST_P(CudaAttention, HeadSizesAndTypes) {
  for (const int head_size : {64, 80, 96, 128, 256}) {
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      SCOPED_TRACE(::testing::Message() << head_size << " " << to_string(dtype));
      check({.sequences = {{1, 5, 21}, {2, 1, 270}, {3, 33, 300}, {4, 1, 1}}, .head_size = head_size, .dtype = dtype});
    }
  }
}

TEST_P(CudaAttention, GroupsOfHeads) {
  constexpr std::pair<int, int> kHeads[] = {{3, 3}, {9, 3}, {14, 2}, {5, 1}, {4, 1}, {8, 1}, {2, 1}};
  for (const auto& [num_heads, num_kv_heads] : kHeads) {
    SCOPED_TRACE(num_heads);
    check({.sequences = {{1, 1, 40}, {2, 27, 90}}, .num_heads = num_heads, .num_kv_heads = num_kv_heads});
  }
}

TEST_P(CudaAttention, BlockSizes) {
  for (const int block_size : {8, 16, 24, 32, 64, 96, 128, 256}) {
    SCOPED_TRACE(block_size);
    check({.sequences = {{1, 1, 280}, {2, 20, 130}, {3, 8, 8}}, .num_kv_heads = 1, .block_size = block_size});
  }
}

TEST_P(CudaAttention, WindowsAndSoftcap) {
  for (const int window : {0, 1, 2, 15, 16, 17, 64, 65, 100, 1000}) {
    for (const float softcap : {0.0f, 2.0f}) {
      SCOPED_TRACE(::testing::Message() << window << " " << softcap);
      check({.sequences = {{1, 1, 290}, {2, 70, 200}, {3, 10, 10}}, .num_kv_heads = 1, .window = window, .softcap = softcap});
    }
  }
}

TEST_P(CudaAttention, ExplicitScale) {
  check({.sequences = {{1, 1, 90}, {2, 9, 80}}, .scale = 1.0f / 256});
  check({.sequences = {{1, 1, 90}, {2, 9, 80}}, .softcap = 30.0f, .scale = 0.5f});
}

TEST_P(CudaAttention, ChunksAtEveryOffset) {
  for (const int first : {0, 1, 7, 62, 63, 64, 65, 127, 130}) {
    SCOPED_TRACE(first);
    check({.sequences = {{1, 70, first + 70}, {2, 1, first + 1}}, .num_heads = 3, .num_kv_heads = 1});
    check({.sequences = {{1, 4, first + 4}}, .num_heads = 1, .num_kv_heads = 1});
  }
}

// A warp has 16 rows, or 32 in the large tile: of the last of them only the own position lies in the second tile of positions.
TEST_P(CudaAttention, AWarpsLastRowBeginsATile) {
  check({.sequences = {{1, 16, 65}, {2, 32, 65}}, .num_heads = 1, .num_kv_heads = 1});
  check({.sequences = {{1, 16, 33}}, .num_heads = 1, .num_kv_heads = 1, .head_size = 256});
}

TEST_P(CudaAttention, ContextsAroundSplits) {
  for (const int kv_len : {383, 384, 385, 640, 700, 1025}) {
    SCOPED_TRACE(kv_len);
    check({.sequences = {{1, 1, kv_len}, {2, 3, kv_len / 2}}, .num_kv_heads = 1});
  }
  check({.sequences = {{1, 1, 2048}, {2, 1, 2049}, {3, 6, 2051}, {4, 1, 4200}}, .num_heads = 2, .num_kv_heads = 1});
  check({.sequences = {{1, 6, 2051}, {2, 1, 2600}}, .num_heads = 2, .num_kv_heads = 1, .window = 700});
}

TEST_P(CudaAttention, EmptySequencesAndSteps) {
  check({.sequences = {{1, 0, 20}, {2, 3, 20}, {3, 0, 0}, {4, 1, 7}, {5, 0, 5}}});
  check({.sequences = {{1, 1, 0}, {2, 1, 1}, {3, 1, 2}}});
  const std::vector<float> nothing = run_attention({.sequences = {{1, 1, 0}}, .num_heads = 16, .num_kv_heads = 1}, run());
  EXPECT_TRUE(same_bits(nothing, std::vector<float>(16 * 64, 0.0f)));
  EXPECT_TRUE(run_attention({.sequences = {{1, 0, 20}}}, run()).empty());
  EXPECT_TRUE(run_attention({.sequences = {}}, run()).empty());
}

TEST_P(CudaAttention, RowsOfAWiderMatrix) {
  DeviceAttention attention({.sequences = {{1, 3, 20}, {2, 1, 30}}});
  const std::vector<float> expected = attention.run(run());
  AttentionArgs args = attention.args();
  constexpr std::size_t kWidth = 4 * 64, kStride = 3 * kWidth, kOffset = 64;
  simt::DeviceBuffer<std::uint16_t> fused(4 * kStride);
  for (std::size_t row = 0; row < 4; ++row) {
    std::copy_n(static_cast<const std::uint16_t*>(args.q.data) + row * kWidth, kWidth, fused.data() + row * kStride + kOffset);
  }
  args.q.data = fused.data() + kOffset;
  args.q.outer_stride = kStride;
  EXPECT_TRUE(same_bits(attention.run(args, run()), expected));
}

TEST_P(CudaAttention, SegmentsKeepAbsoluteOffsets) {
  const std::vector<PagedSequence> all{{1, 1, 20}, {2, 1, 40}, {3, 9, 30}, {4, 5, 5}};
  DeviceAttention attention({.sequences = all});
  const std::vector<float> whole = attention.run(run());
  AttentionArgs args = attention.args();
  args.q_indptr = args.q_indptr.rows(2, 3);
  args.kv_lens = args.kv_lens.rows(2, 2);
  args.page_indptr = args.page_indptr.rows(2, 3);
  const cuda::SplitPlan plan = DeviceAttention({.sequences = {all[2], all[3]}}).plan(run());
  const std::vector<float> out = attention.run(args, run(), plan);
  constexpr int kRow = 4 * 64;
  EXPECT_TRUE(same_bits({out.begin() + 2 * kRow, out.end()}, {whole.begin() + 2 * kRow, whole.end()}));
  EXPECT_TRUE(same_bits({out.begin(), out.begin() + 2 * kRow}, std::vector<float>(2 * kRow, NAN))) << "rows outside were written";
}

// Padding that looks like work but for its sequence: before the first sequence of the tables stands another.
TEST_P(CudaAttention, PaddingIsKnownByItsSequence) {
  const std::vector<PagedSequence> both{{1, 1, 40}, {2, 1, 700}};
  DeviceAttention attention({.sequences = both});
  AttentionArgs args = attention.args();
  args.q_indptr = args.q_indptr.rows(1, 2);
  args.kv_lens = args.kv_lens.rows(1, 1);
  args.page_indptr = args.page_indptr.rows(1, 2);
  cuda::SplitPlan plan = DeviceAttention({.sequences = {both[1]}}).plan(run());
  cuda::WorkItem item = plan.items[0];
  item.sequence = item.partial = -1;
  plan.items.push_back(item);
  ++plan.waves.back().num_items;
  if (!plan.combines.empty()) {
    cuda::CombineItem combine = plan.combines[0];
    combine.sequence = -1;
    plan.combines.push_back(combine);
    ++plan.waves.back().num_combines;
  }
  const std::vector<float> out = attention.run(args, run(), plan);
  EXPECT_TRUE(same_bits({out.begin(), out.begin() + 256}, std::vector<float>(256, NAN))) << "was written";
}

TEST_P(CudaAttention, PlansMayReachBeyondWhatRowsSee) {
  // What the last two see ends and begins with a page.
  DeviceAttention attention(
      {.sequences = {{1, 1, 100}, {2, 20, 150}, {3, 1, 10}, {4, 1, 160}, {5, 1, 72}}, .num_kv_heads = 1, .window = 40});
  cuda::SplitPlan plan = attention.plan(run());
  ASSERT_TRUE(plan.combines.empty());
  for (cuda::WorkItem& item : plan.items) {
    item.begin = 0;
    item.end = 1 << 20;
  }
  EXPECT_TRUE(same_bits(attention.run(attention.args(), run(), plan), attention.run(run())));
}

TEST_P(CudaAttention, NanInAVisibleKeyReachesTheRowsThatSeeItAndNoOther) {
  DeviceAttention attention({.sequences = {{1, 3, 20}, {2, 1, 20}}, .placement = 3});
  const std::vector<float> before = attention.run(run());
  attention.keys()[attention.layout().element_of(0, 18, 0) + 5] = 0x7fff;  // the last two rows of sequence 0 see it
  const std::vector<float> after = attention.run(run());
  constexpr int kWidth = 4 * 64;
  for (int row = 0; row < 4; ++row) {
    for (int i = 0; i < kWidth; ++i) {
      const bool touched = (row == 1 || row == 2) && i < kWidth / 2;  // KV head 0 serves the first half of the heads
      ASSERT_EQ(std::isnan(after[row * kWidth + i]), touched) << row << " " << i;
      if (!touched) {
        ASSERT_EQ(after[row * kWidth + i], before[row * kWidth + i]);
      }
    }
  }
}

TEST_P(CudaAttention, AValueThatIsNotFiniteReachesTheRowsThatSeeItAndNoOther) {
  constexpr int kWidth = 4 * 64, kFirst = 40, kRows = 35, kWindow = 20;
  struct Bad {
    int position, kv_head, element;
    float value;
  };
  // Seen by some of the rows of a tile: in its midst, at either end of the last row that a warp copies, 32 chunks behind the
  // first, in another tile; by the first row alone, by the last alone.
  for (const Bad& bad : {Bad{49, 0, 5, NAN}, Bad{47, 1, 63, INFINITY}, Bad{70, 0, 10, -INFINITY}, Bad{21, 1, 0, NAN},
                         Bad{74, 0, 39, INFINITY}, Bad{52, 1, 35, NAN}, Bad{63, 0, 3, NAN}}) {
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      SCOPED_TRACE(::testing::Message() << to_string(dtype) << " " << bad.value);
      DeviceAttention attention(
          {.sequences = {{1, kRows, kFirst + kRows}, {2, 1, 20}}, .window = kWindow, .dtype = dtype, .placement = 3});
      const std::size_t place =
          attention.layout().element_of(0, bad.position, bad.kv_head) + static_cast<std::size_t>(bad.element);
      attention.values()[place] = from_float(0.0f, dtype);
      const std::vector<float> zero = attention.run(run());
      attention.values()[place] = from_float(bad.value, dtype);
      const std::vector<float> out = attention.run(run());
      for (int row = 0; row <= kRows; ++row) {
        const int age = kFirst + row - bad.position;
        for (int i = 0; i < kWidth; ++i) {
          // KV head 0 serves the first half of the heads.
          const bool is_its_head = i / (kWidth / 2) == bad.kv_head && i % 64 == bad.element;
          const bool sees = row < kRows && age >= 0 && age < kWindow && is_its_head;
          const auto at = static_cast<std::size_t>(row * kWidth + i);
          ASSERT_TRUE(sees ? std::isnan(out[at]) : out[at] == zero[at]) << row << ", " << i << ": " << out[at];
        }
      }
    }
  }
}

TEST_P(CudaAttention, AValueThatIsNotFiniteInOneOfManyParts) {
  constexpr int kLength = 2100, kRows = 3, kWidth = 4 * 64, kWindow = 2080, kHead = 1, kElement = 38;
  // The first tile and the last are not seen whole: by two of the rows, by all, by two.
  constexpr int kPlaces[] = {19, 2048, 2098};
  DeviceAttention attention({.sequences = {{1, kRows, kLength}}, .window = kWindow});
  const auto value = [&](int position) -> std::uint16_t& {
    return attention.values()[attention.layout().element_of(0, position, kHead) + kElement];
  };
  for (const int position : kPlaces) value(position) = from_float(0.0f, DType::kF16);
  const std::vector<float> zero = attention.run(run());
  for (const int position : kPlaces) {
    value(position) = from_float(NAN, DType::kF16);
    const std::vector<float> out = attention.run(run());
    value(position) = from_float(0.0f, DType::kF16);
    for (int i = 0; i < kRows * kWidth; ++i) {
      const int age = kLength - kRows + i / kWidth - position;
      const bool sees = age >= 0 && age < kWindow && i % kWidth / (kWidth / 2) == kHead && i % 64 == kElement;
      ASSERT_TRUE(sees ? std::isnan(out[i]) : out[i] == zero[i]) << position << ": " << i;
    }
  }
}

TEST_P(CudaAttention, ManyPartsOfTwoKvHeads) {
  check({.sequences = {{1, 3, 2100}}});
  check({.sequences = {{1, 1, 700}}, .num_heads = 2, .num_kv_heads = 1, .head_size = 256});
}

// Of each part the largest score is that of some head, by far.
TEST_P(CudaAttention, AnyPartMayHaveTheLargestScore) {
  DeviceAttention attention({.sequences = {{1, 1, 2100}}, .num_heads = 8, .num_kv_heads = 1});
  auto* const q = static_cast<std::uint16_t*>(attention.args().q.data);
  for (int i = 0; i < 8 * 8; ++i) q[i / 8 * 64 + i % 8] = from_float(i % 8 == i / 8 ? 60.0f : 0.0f, DType::kF16);
  for (int position = 0; position < 2100; ++position) {
    for (int d = 0; d < 8; ++d) {
      attention.keys()[attention.layout().element_of(0, position, 0) + static_cast<std::size_t>(d)] =
          from_float(position == 262 * d + 5 ? 40.0f : 0.0f, DType::kF16);
    }
  }
  EXPECT_TRUE(near(attention.run(run()), attention.expected(), 1.0 / 1024, 1.0 / 1024));
}

// A softmax whose maximum misses a position does not notice unless the others are no measure for it: here each of 64 positions is
// the largest by 2^400 for some row of either half of a fragment.
TEST_P(CudaAttention, AnyPositionMayHaveTheLargestScore) {
  constexpr int kHeads = 16, kSize = 64, kSequences = 8;
  AttentionCase problem{.sequences = {}, .num_heads = kHeads, .num_kv_heads = 1};
  for (std::uint64_t s = 0; s < kSequences; ++s) problem.sequences.push_back({s, 1, 64});
  DeviceAttention attention(problem);
  auto* const q = static_cast<std::uint16_t*>(attention.args().q.data);
  for (int s = 0; s < kSequences; ++s) {
    for (int h = 0; h < kHeads; ++h) {  // looks for element h % 8
      for (int d = 0; d < 8; ++d) q[(s * kHeads + h) * kSize + d] = from_float(d == h % 8 ? 60.0f : 0.0f, DType::kF16);
    }
    for (int position = 0; position < 64; ++position) {
      for (int d = 0; d < 8; ++d) {
        attention.keys()[attention.layout().element_of(static_cast<std::size_t>(s), position, 0) + static_cast<std::size_t>(d)] =
            from_float(position == 8 * s + d ? 40.0f : 0.0f, DType::kF16);
      }
    }
  }
  EXPECT_TRUE(near(attention.run(run()), attention.expected(), 1.0 / 1024, 1.0 / 1024));
}

// ---- faults that peers' users reported

TEST_P(PeerBugs, B056_B058_B061_OffsetsBeyond32Bits) {
  constexpr std::int64_t kStride = std::int64_t{1} << 20, kBlocks = std::int64_t{1} << 13;  // 2^33 elements, 2^34 bytes
  DeviceAttention attention({.sequences = {{1, 1, 80}, {2, 20, 80}}, .num_heads = 2, .num_kv_heads = 1});
  const std::vector<float> expected = attention.run(run());
  AttentionArgs args = attention.args();
  simt::DeviceBuffer<std::uint16_t> keys(kStride * kBlocks, simt::DeviceMemory::Fill::kSparse);
  simt::DeviceBuffer<std::uint16_t> values(kStride * kBlocks, simt::DeviceMemory::Fill::kSparse);
  const std::int32_t far[] = {kBlocks - 1, 0, (1 << 11) - 1, 1 << 11, 1 << 12,  // 2^31 / stride is 2^11
                              kBlocks - 2, 1, (1 << 11) - 2, 5000,    (1 << 12) - 1};
  std::vector<std::int32_t> pages(static_cast<std::size_t>(args.page_indices.dim(0)), 0x7fffffff);
  for (int i = 0; i < 10; ++i) {
    const int entry = i / 5 * (5 + 2) + i % 5;  // two spare entries behind each sequence's
    const std::int64_t from = args.page_indices.as<std::int32_t>()[entry] * args.kv.block_stride, to = far[i] * kStride;
    std::copy_n(attention.keys().data() + from, args.kv.block_stride, keys.data() + to);
    std::copy_n(attention.values().data() + from, args.kv.block_stride, values.data() + to);
    pages[static_cast<std::size_t>(entry)] = far[i];
  }
  const simt::DeviceBuffer<std::int32_t> far_pages(pages);
  args.page_indices.data = far_pages.data();
  args.kv.keys = keys.data();
  args.kv.values = values.data();
  args.kv.block_stride = kStride;
  EXPECT_TRUE(same_bits(attention.run(args, run()), expected));
}

TEST_P(PeerBugs, B062_BlockSizesAndLongContexts) {
  constexpr int kLong[] = {4095, 4096, 4097, 8191, 8192, 8193};  // one block size meets each
  std::set<int> not_met(std::begin(kLong), std::end(kLong));
  std::size_t turn = 0;
  for (const int block_size : {8, 16, 32, 64, 96, 128, 192, 256}) {
    SCOPED_TRACE(block_size);
    AttentionCase problem{.sequences = {}, .num_heads = 1, .num_kv_heads = 1, .block_size = block_size};
    for (const int kv_len : {block_size - 1, block_size, block_size + 1}) {
      problem.sequences.push_back({static_cast<std::uint64_t>(kv_len), 1, kv_len});
    }
    const int long_len = kLong[turn++ % std::size(kLong)];
    problem.sequences.push_back({9, 1, long_len});
    not_met.erase(long_len);
    check(problem);
  }
  EXPECT_TRUE(not_met.empty()) << "context " << *not_met.begin() << " met no block size";
}

TEST_P(PeerBugs, B064_B065_AnyRatioOfQueryToKvHeads) {
  for (const int head_size : {64, 128}) {
    for (int group = 1; group <= 32; group += group < 16 ? 1 : 8) {
      SCOPED_TRACE(group);
      check({.sequences = {{1, 1, 40}, {2, 2, 33}}, .num_heads = group, .num_kv_heads = 1, .head_size = head_size});
    }
  }
}

TEST_P(PeerBugs, B067_WhatStandsInUnusedSlotsDoesNotMatter) {
  AttentionCase problem{.sequences = {{1, 1, 41}, {2, 20, 37}}, .window = 17, .poison = 0.0f};
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    problem.dtype = dtype;
    problem.poison = 0.0f;
    const std::vector<float> zeros = run_attention(problem, run());
    for (const float poison : {NAN, INFINITY, 1e30f}) {
      problem.poison = poison;
      EXPECT_TRUE(same_bits(run_attention(problem, run()), zeros)) << poison;
    }
  }
}

TEST_P(PeerBugs, B068_ExtremeScoresAndRowsThatSeeNothing) {
  check({.sequences = {{1, 4, 30}, {2, 1, 9}, {3, 1, 200}, {4, 12, 40}}, .q_scale = 1e5f, .dtype = DType::kBF16});
  // Five new rows, but two positions: the first three rows stand before the sequence's beginning and see nothing.
  for (const int window : {0, 1, 7}) {
    DeviceAttention attention({.sequences = {{1, 5, 2}}, .window = window});
    const std::vector<float> out = attention.run(run());
    EXPECT_TRUE(same_bits({out.begin(), out.begin() + 3 * 256}, std::vector<float>(3 * 256, 0.0f)));
    EXPECT_TRUE(near(out, attention.expected(), 1e-3, 1e-3));
  }
  // All scores -infinity.
  for (const int kv_len : {20, 2100}) {
    DeviceAttention attention({.sequences = {{1, 1, kv_len}}, .num_heads = 1, .num_kv_heads = 1});
    const AttentionArgs args = attention.args();
    for (int d = 0; d < 64; ++d) static_cast<std::uint16_t*>(args.q.data)[d] = from_float(d == 0 ? -INFINITY : 0.0f, DType::kF16);
    for (int i = 0; i < kv_len; ++i) attention.keys()[attention.layout().element_of(0, i, 0)] = from_float(1.0f, DType::kF16);
    EXPECT_TRUE(same_bits(attention.run(run()), std::vector<float>(64, 0.0f))) << kv_len;
  }
}

TEST_P(PeerBugs, B071_PartialLastBlock) {
  for (int kv_len = 1; kv_len <= 33; ++kv_len) {
    SCOPED_TRACE(kv_len);
    check({.sequences = {{1, 1, kv_len}, {2, kv_len, kv_len}}, .num_kv_heads = 1, .poison = 6e4f});
  }
}

TEST_P(PeerBugs, B079_WindowEdges) {
  constexpr int kWindow = 24, kBlock = 8;
  for (int n = kWindow - 1; n <= kWindow + 2 * kBlock; ++n) {
    SCOPED_TRACE(n);
    check({.sequences = {{1, 1, n}, {2, n, n}}, .num_kv_heads = 1, .block_size = kBlock, .window = kWindow});
  }
}

TEST_P(PeerBugs, B082_TheTableEndsWithTheContext) {
  for (const int kv_len : {63, 64, 65, 512}) {
    check({.sequences = {{1, 1, kv_len}}, .num_kv_heads = 1, .block_size = 32, .spare_entries = 0});
  }
}

TEST_P(PeerBugs, B085_PaddedLaunchesDoNothingMore) {
  AttentionRun padded = run();
  padded.padding = 3;
  const AttentionCase problem{.sequences = {{1, 1, 500}, {2, 20, 37}}, .num_kv_heads = 1};
  EXPECT_TRUE(same_bits(run_attention(problem, padded), run_attention(problem, run())));
}

TEST_P(PeerBugs, B088_EqualPositionsOfTwoSequencesInOnePool) {
  const std::vector<float> both = run_attention({.sequences = {{1, 1, 40}, {2, 1, 40}}}, run());
  EXPECT_TRUE(same_bits({both.begin(), both.begin() + 256}, run_attention({.sequences = {{1, 1, 40}}}, run())));
  EXPECT_TRUE(same_bits({both.begin() + 256, both.end()}, run_attention({.sequences = {{2, 1, 40}}}, run())));
}

}  // namespace
}  // namespace quire::testing
