// The CPU attention against the double-precision oracle, and the promise that nothing about the layout of the work or of the
// cache changes a bit. Every case is poisoned: see tests/support/paged_attention.h.
#include <sys/mman.h>

#include <cmath>

#include "tests/support/cpu_variants.h"
#include "tests/support/paged_attention.h"

namespace quire::testing {
namespace {

class AttentionTest : public CpuKernelTest {
 protected:
  // The oracle, and the bits of the portable variant.
  void check(const AttentionCase& attention) const {
    PagedAttention paged(attention);
    const std::vector<float> out = paged.run(table());
    EXPECT_TRUE(near(out, paged.expected(), 2e-5, 2e-6));
    EXPECT_TRUE(same_bits(out, paged.run(portable(), 2)));
  }
};
QUIRE_INSTANTIATE_VARIANTS(AttentionTest);
class PeerBugs : public AttentionTest {};
QUIRE_INSTANTIATE_VARIANTS(PeerBugs);

// Rows [begin, end) of out, each `width` wide.
std::vector<float> rows(const std::vector<float>& out, int begin, int end, int width) {
  return {out.begin() + begin * width, out.begin() + end * width};
}

TEST_P(AttentionTest, Decode) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
    SCOPED_TRACE(to_string(dtype));
    check({.sequences = {{1, 1, 1}, {2, 1, 2}, {3, 1, 15}, {4, 1, 16}, {5, 1, 17}, {6, 1, 300}}, .dtype = dtype});
  }
}

TEST_P(AttentionTest, Prefill) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
    SCOPED_TRACE(to_string(dtype));
    check({.sequences = {{1, 1, 1}, {2, 37, 37}, {3, 20, 100}, {4, 1, 70}, {5, 64, 65}}, .dtype = dtype});
  }
}

TEST_P(AttentionTest, HeadSizes) {
  for (const int head_size : {2, 8, 16, 24, 40, 64, 72, 80, 96, 112, 128, 192, 256, 512}) {
    SCOPED_TRACE(head_size);
    check({.sequences = {{1, 5, 21}, {2, 1, 34}}, .head_size = head_size});
  }
}

TEST_P(AttentionTest, WindowsAndSoftcap) {
  for (const int window : {0, 1, 2, 15, 16, 17, 40, 1000}) {
    for (const float softcap : {0.0f, 2.0f}) {
      SCOPED_TRACE(window);
      check({.sequences = {{1, 1, 90}, {2, 33, 80}, {3, 10, 10}}, .window = window, .softcap = softcap});
    }
  }
}

TEST_P(AttentionTest, BlockSizeAndPlacementDoNotChangeABit) {
  AttentionCase attention{.sequences = {{1, 1, 133}, {2, 50, 90}, {3, 1, 16}}, .num_heads = 6, .num_kv_heads = 2};
  for (const int window : {0, 30}) {
    attention.window = window;
    attention.block_size = 16;
    const std::vector<float> expected = run_attention(attention, table());
    for (const int block_size : {1, 3, 8, 16, 32, 64}) {
      for (const std::uint64_t placement : {1, 2}) {
        attention.block_size = block_size;
        attention.placement = placement;
        EXPECT_TRUE(same_bits(run_attention(attention, table()), expected)) << block_size;
      }
    }
  }
}

TEST_P(AttentionTest, ThreadsDoNotChangeABit) {
  const AttentionCase attention{.sequences = {{1, 70, 133}, {2, 1, 90}, {3, 33, 33}}, .num_heads = 6, .num_kv_heads = 2};
  const std::vector<float> expected = run_attention(attention, table(), 1);
  for (const int threads : {2, 3, 5}) EXPECT_TRUE(same_bits(run_attention(attention, table(), threads), expected)) << threads;
  // One row, more threads than KV heads: the heads of a group are split.
  const AttentionCase single{.sequences = {{1, 1, 90}}, .num_heads = 9, .num_kv_heads = 1};
  EXPECT_TRUE(same_bits(run_attention(single, table(), 4), run_attention(single, table(), 1)));
}

// Fewer long rows than threads: they are shared, by positions and by elements of the head. Beside them a short row, one
// that sees nothing, and sequences without rows.
TEST_P(AttentionTest, RowsSharedByThreadsKeepTheirBits) {
  for (const auto& [head_size, dtype] : {std::pair(64, DType::kF16), std::pair(80, DType::kF32), std::pair(256, DType::kBF16)}) {
    for (const int window : {0, 391}) {
      SCOPED_TRACE(head_size);
      AttentionCase attention{.sequences = {{1, 1, 700}}, .num_heads = 9, .num_kv_heads = 3, .head_size = head_size};
      attention.window = window;
      attention.dtype = dtype;
      const std::vector<float> alone = run_attention(attention, table(), 1);
      EXPECT_TRUE(near(alone, PagedAttention(attention).expected(), 2e-5, 2e-6));
      for (const int threads : {2, 5}) EXPECT_TRUE(same_bits(run_attention(attention, table(), threads), alone)) << threads;
      attention.block_size = 24;
      EXPECT_TRUE(same_bits(run_attention(attention, table(), 4), alone));
      attention.sequences = {{8, 2, 700}};  // no row of its own for each sequence
      EXPECT_TRUE(same_bits(run_attention(attention, table(), 5), run_attention(attention, table(), 1)));
      attention.sequences = {{2, 0, 9}, {3, 1, 5}, {1, 1, 700}, {4, 0, 0}, {5, 2, 1}, {6, 0, 1}, {7, 1, 384}};
      attention.num_heads = attention.num_kv_heads = 1;
      const std::vector<float> several = run_attention(attention, table(), 1);
      for (const int threads : {3, 7}) EXPECT_TRUE(same_bits(run_attention(attention, table(), threads), several)) << threads;
    }
  }
}

TEST_P(AttentionTest, ChunksAndDecodeEqualTheWholePrefill) {
  constexpr int kLength = 75;
  for (const int window : {0, 20}) {
    AttentionCase attention{.sequences = {{7, kLength, kLength}}, .num_heads = 6, .num_kv_heads = 2, .window = window};
    const int width = attention.num_heads * attention.head_size;
    const std::vector<float> whole = run_attention(attention, table());
    for (const int chunk : {1, 3, 16, 31, 64}) {
      for (int begin = 0; begin < kLength; begin += chunk) {
        const int end = std::min(kLength, begin + chunk);
        attention.sequences = {{7, end - begin, end}};
        EXPECT_TRUE(same_bits(run_attention(attention, table()), rows(whole, begin, end, width))) << chunk << " at " << begin;
      }
    }
  }
}

TEST_P(AttentionTest, OtherSequencesDoNotChangeABit) {
  AttentionCase attention{.sequences = {{1, 1, 50}}};
  const int width = attention.num_heads * attention.head_size;
  const std::vector<float> alone = run_attention(attention, table());
  attention.sequences = {{9, 13, 40}, {8, 1, 200}, {1, 1, 50}, {5, 40, 40}};
  EXPECT_TRUE(same_bits(rows(run_attention(attention, table(), 2), 14, 15, width), alone));
  attention.sequences = {{2, 1, 3}, {1, 1, 50}};  // all decode
  EXPECT_TRUE(same_bits(rows(run_attention(attention, table(), 2), 1, 2, width), alone));
}

TEST_P(AttentionTest, SegmentsKeepAbsoluteOffsets) {
  PagedAttention paged({.sequences = {{1, 1, 20}, {2, 1, 40}, {3, 9, 30}, {4, 5, 5}}});
  const std::vector<float> whole = paged.run(table());
  AttentionArgs args = paged.args();
  std::vector<float> out(whole.size(), -1.0f);
  args.out.data = out.data();
  args.q_indptr = args.q_indptr.rows(2, 3);  // the last two sequences
  args.kv_lens = args.kv_lens.rows(2, 2);
  args.page_indptr = args.page_indptr.rows(2, 3);
  ThreadPool pool(1);
  std::vector<std::byte> scratch(cpu::attention_scratch_bytes(40, 1));
  table().attention(args, pool, scratch.data());
  constexpr int kWidth = 4 * 64;
  EXPECT_TRUE(same_bits(rows(out, 2, 16, kWidth), rows(whole, 2, 16, kWidth)));
  EXPECT_TRUE(same_bits(rows(out, 0, 2, kWidth), std::vector<float>(2 * kWidth, -1.0f))) << "rows outside were written";
}

TEST_P(AttentionTest, EmptySequencesAndSteps) {
  check({.sequences = {{1, 0, 20}, {2, 3, 20}, {3, 0, 0}, {4, 1, 7}, {5, 0, 5}}});
  PagedAttention paged({.sequences = {{1, 0, 20}}});
  EXPECT_TRUE(paged.run(table()).empty());
}

TEST_P(AttentionTest, NanInAVisibleKeyReachesTheRowAndNoOther) {
  PagedAttention paged({.sequences = {{1, 3, 20}, {2, 1, 20}}, .dtype = DType::kF32, .placement = 3});
  AttentionArgs args = paged.args();
  const std::vector<float> before = paged.run(table());
  // The key of position 18 of sequence 0, seen by its last two rows.
  const std::int64_t block = args.page_indices.as<std::int32_t>()[1];
  static_cast<float*>(args.kv.keys)[block * args.kv.block_stride + 2 * 64 + 5] = NAN;
  const std::vector<float> after = paged.run(table());
  constexpr int kHeads = 4, kWidth = kHeads * 64;
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

TEST_P(PeerBugs, B056_OffsetsBeyond32Bits) {
  // A sparse pool of 2^33 elements: only pages that are touched exist.
  constexpr std::int64_t kStride = std::int64_t{1} << 20, kBlocks = std::int64_t{1} << 13;
  constexpr std::size_t kBytes = kStride * kBlocks * 2;
  void* pool_memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pool_memory == MAP_FAILED) GTEST_SKIP() << "no address space for " << kBytes << " bytes";
  constexpr int kSize = 64, kBlockSize = 16;
  std::vector<std::int32_t> pages{kBlocks - 1, 0, (1 << 11) - 1, 1 << 11, 1 << 12};  // 2^31 / stride is 2^11
  constexpr int kLength = 5 * kBlockSize;
  ThreadPool pool(1);

  const auto run = [&](KvLayer layer, const std::vector<std::int32_t>& table_pages) {
    std::vector<float> k = noises(kLength * kSize, 1), v = noises(kLength * kSize, 2), q = noises(kSize, 3), out(kSize, NAN);
    std::vector<std::int64_t> slots;
    for (int i = 0; i < kLength; ++i) slots.push_back(std::int64_t{table_pages[i / kBlockSize]} * kBlockSize + i % kBlockSize);
    const auto kv_view = [&](std::vector<float>& x) { return TensorView(x.data(), DType::kF32, {kLength, 1, kSize}); };
    table().append_kv({kv_view(k), kv_view(v), TensorView(slots.data(), DType::kI64, {kLength}), layer}, pool);
    std::int32_t q_indptr[] = {0, 1}, kv_len = kLength, page_indptr[] = {0, 5};
    std::vector<std::int32_t> indices = table_pages;
    AttentionArgs args;
    args.q = TensorView(q.data(), DType::kF32, {1, 1, kSize});
    args.out = TensorView(out.data(), DType::kF32, {1, 1, kSize});
    args.kv = layer;
    args.q_indptr = TensorView(q_indptr, DType::kI32, {2});
    args.kv_lens = TensorView(&kv_len, DType::kI32, {1});
    args.page_indptr = TensorView(page_indptr, DType::kI32, {2});
    args.page_indices = TensorView(indices.data(), DType::kI32, {5});
    std::vector<std::byte> scratch(cpu::attention_scratch_bytes(kLength, 1));
    table().attention(args, pool, scratch.data());
    return out;
  };
  KvLayer sparse{pool_memory, static_cast<std::uint16_t*>(pool_memory) + kStride / 2, DType::kF16, kStride, kBlockSize, 1, kSize};
  const std::vector<float> far = run(sparse, pages);
  std::vector<std::uint16_t> dense(5 * 2 * kBlockSize * kSize);
  KvLayer near_layer{dense.data(), dense.data() + kBlockSize * kSize, DType::kF16, 2 * kBlockSize * kSize, kBlockSize, 1, kSize};
  EXPECT_TRUE(same_bits(far, run(near_layer, {0, 1, 2, 3, 4})));
  munmap(pool_memory, kBytes);
}

TEST_P(PeerBugs, B062_BlockSizesAndLongContexts) {
  for (const int block_size : {1, 2, 3, 8, 16, 32, 64, 96, 128, 192, 256}) {
    SCOPED_TRACE(block_size);
    AttentionCase attention{.sequences = {}, .num_heads = 2, .num_kv_heads = 1, .head_size = 16, .block_size = block_size};
    for (const int kv_len : {block_size - 1, block_size, block_size + 1, 4095, 4096, 4097, 8191, 8192, 8193}) {
      if (kv_len > 0) attention.sequences.push_back({static_cast<std::uint64_t>(kv_len), 1, kv_len});
    }
    PagedAttention paged(attention);
    EXPECT_TRUE(near(paged.run(table()), paged.expected(), 2e-5, 2e-6));
  }
}

TEST_P(PeerBugs, B064_EveryRowOfEveryGroupIsWritten) {  // what does not divide is refused by the backend, see its test
  for (const int group : {1, 2, 3, 5, 6, 7, 12, 14, 16}) {
    SCOPED_TRACE(group);
    check({.sequences = {{1, 3, 19}, {2, 1, 5}}, .num_heads = 2 * group, .num_kv_heads = 2, .head_size = 32});
  }
}

TEST_P(PeerBugs, B065_AnyRatioOfQueryToKvHeads) {
  for (const int head_size : {64, 128}) {
    for (int group = 1; group <= 32; group += group < 16 ? 1 : 8) {
      SCOPED_TRACE(group);
      check({.sequences = {{1, 1, 40}, {2, 2, 33}}, .num_heads = group, .num_kv_heads = 1, .head_size = head_size});
    }
  }
}

TEST_P(PeerBugs, B067_WhatStandsInUnusedSlotsDoesNotMatter) {
  AttentionCase attention{.sequences = {{1, 1, 41}, {2, 20, 37}}, .window = 17, .poison = 0.0f};
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
    attention.dtype = dtype;
    attention.poison = 0.0f;
    const std::vector<float> zeros = run_attention(attention, table());
    for (const float poison : {NAN, INFINITY, 1e30f}) {
      attention.poison = poison;
      EXPECT_TRUE(same_bits(run_attention(attention, table()), zeros)) << poison;
    }
  }
}

TEST_P(PeerBugs, B068_ExtremeScoresAndRowsThatSeeNothing) {
  check({.sequences = {{1, 4, 30}, {2, 1, 9}}, .q_scale = 1e5f, .dtype = DType::kF32});
  // Five new rows, but two positions: the first three rows stand before the sequence's beginning and see nothing.
  for (const int window : {0, 1, 7}) {
    PagedAttention paged({.sequences = {{1, 5, 2}}, .window = window});
    const std::vector<float> out = paged.run(table());
    EXPECT_TRUE(same_bits(rows(out, 0, 3, 256), std::vector<float>(3 * 256, 0.0f)));
    EXPECT_TRUE(near(out, paged.expected(), 2e-5, 2e-6));
  }
  // All scores -infinity.
  AttentionCase infinite{.sequences = {{1, 1, 20}}, .num_heads = 1, .num_kv_heads = 1, .head_size = 16, .dtype = DType::kF32};
  PagedAttention paged(infinite);
  AttentionArgs args = paged.args();
  for (int d = 0; d < 16; ++d) args.q.as<float>()[d] = d == 0 ? -INFINITY : 0.0f;
  for (int block = 0; block < 2; ++block) {
    for (int i = 0; i < 16; ++i) static_cast<float*>(args.kv.keys)[block * args.kv.block_stride + i * 16] = 1.0f;
  }
  EXPECT_TRUE(same_bits(paged.run(table()), std::vector<float>(16, 0.0f)));
}

TEST_P(PeerBugs, B071_PartialLastBlock) {
  for (int kv_len = 1; kv_len <= 33; ++kv_len) {
    SCOPED_TRACE(kv_len);
    check({.sequences = {{1, 1, kv_len}, {2, kv_len, kv_len}}, .poison = 1e30f});
  }
}

TEST_P(PeerBugs, B079_WindowEdges) {
  constexpr int kWindow = 24, kBlock = 8;
  for (int n = kWindow - 1; n <= kWindow + 2 * kBlock; ++n) {
    SCOPED_TRACE(n);
    check({.sequences = {{1, 1, n}, {2, n, n}}, .block_size = kBlock, .window = kWindow});
  }
}

TEST_P(PeerBugs, B088_EqualPositionsOfTwoSequencesInOnePool) {
  const std::vector<float> both = run_attention({.sequences = {{1, 1, 40}, {2, 1, 40}}}, table());
  EXPECT_TRUE(same_bits(rows(both, 0, 1, 256), run_attention({.sequences = {{1, 1, 40}}}, table())));
  EXPECT_TRUE(same_bits(rows(both, 1, 2, 256), run_attention({.sequences = {{2, 1, 40}}}, table())));
}

}  // namespace
}  // namespace quire::testing
