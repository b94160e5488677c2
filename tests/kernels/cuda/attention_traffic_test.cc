// What the attention kernels move: each live key and value is read from memory once per KV head's group of query heads in decode,
// nothing else of the pool is read, copies and stores take whole sectors, and no access to shared memory meets a bank conflict.
// And what they compute: no tile of which no row of a warp sees anything is loaded, multiplied or searched.
#include <gtest/gtest.h>

#include "tests/kernels/cuda/attention_problem.h"
#include "tests/support/simt/emulator.h"

namespace quire::testing {
namespace {

using cuda::SplitRule;

class AttentionTraffic : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!simt::has_statistics()) GTEST_SKIP() << "nothing is counted here";
  }
  AttentionCase problem(std::vector<PagedSequence> sequences) const {
    return {.sequences = std::move(sequences), .num_heads = 6, .num_kv_heads = 2, .head_size = GetParam(), .window = 1590};
  }
  simt::Statistics run(DeviceAttention& attention, const AttentionRun& run) const {
    const simt::ScopedOptions scoped({.count_traffic = true});
    simt::take_statistics();
    attention.run(run);
    return simt::take_statistics();
  }
};
INSTANTIATE_TEST_SUITE_P(HeadSizes, AttentionTraffic, ::testing::Values(64, 80, 96, 128, 256));

void expect_no_conflict(const simt::SharedTraffic& traffic) { EXPECT_EQ(traffic.num_phases, traffic.num_ideal_phases); }

void expect_clean(const simt::Statistics& seen, const cuda::SplitPlan& plan, int head_size) {
  constexpr int kSector = 32, kUnusedByLse = kSector - 4;  // a partial row's log-sum may cost a sector
  EXPECT_EQ(seen.copy_reads.num_sectors * kSector, seen.copy_reads.num_bytes);
  EXPECT_LE(seen.global_stores.num_sectors * kSector, seen.global_stores.num_bytes + plan.num_partial_rows * kUnusedByLse);
  expect_no_conflict(seen.copy_writes);
  expect_no_conflict(seen.matrix_loads);
  expect_no_conflict(seen.shared_stores);
  // Where rows are no whole number of phases, decode's last step meets some.
  if (head_size % 32 == 0) expect_no_conflict(seen.shared_loads);
  EXPECT_GT(seen.copy_reads.num_bytes, 0);
  EXPECT_GT(seen.matrix_loads.num_phases, 0);
}

// How often each byte of a live position is to be read, the others never.
std::vector<std::uint8_t> live_bytes(const DeviceAttention& attention, const AttentionCase& problem, std::size_t size) {
  std::vector<std::uint8_t> live(size, 0);
  for (std::size_t s = 0; s < problem.sequences.size(); ++s) {
    for (int position = 0; position < problem.sequences[s].kv_len; ++position) {
      if (!attention.layout().is_seen(problem.sequences[s], position)) continue;
      for (int h = 0; h < problem.num_kv_heads; ++h) {
        const std::size_t first = attention.layout().element_of(s, position, h) * 2;
        std::fill_n(live.begin() + static_cast<std::ptrdiff_t>(first), problem.head_size * 2, std::uint8_t{1});
      }
    }
  }
  return live;
}

TEST_P(AttentionTraffic, DecodeReadsEachLiveByteOnce) {
  const AttentionCase decode = problem({{1, 1, 1600}, {2, 1, 77}, {3, 1, 1}});
  for (const int num_sms : {1, 1000}) {
    DeviceAttention attention(decode);
    const std::size_t bytes = attention.keys().size() * 2;
    const simt::ReadWatch keys(attention.keys().data(), bytes), values(attention.values().data(), bytes);
    run(attention, {.kernel = AttentionKernel::kDecode, .num_sms = num_sms});
    const std::vector<std::uint8_t> expected = live_bytes(attention, decode, bytes);
    EXPECT_TRUE(keys.num_reads() == expected);
    EXPECT_TRUE(values.num_reads() == expected);
  }
}

TEST_P(AttentionTraffic, PrefillReadsEachLiveByteOncePerTileOfRows) {
  const AttentionCase prefill = problem({{1, 20, 1600}, {2, 7, 70}});  // 60 and 21 packed rows: a tile each
  for (const SplitRule rule : {SplitRule::kBalanced, SplitRule::kDeterministic}) {
    DeviceAttention attention(prefill);
    const std::size_t bytes = attention.keys().size() * 2;
    const simt::ReadWatch keys(attention.keys().data(), bytes), values(attention.values().data(), bytes);
    run(attention, {.rule = rule, .num_sms = 1000});
    const std::vector<std::uint8_t> expected = live_bytes(attention, prefill, bytes);
    EXPECT_TRUE(keys.num_reads() == expected);
    EXPECT_TRUE(values.num_reads() == expected);
  }
}

TEST_P(AttentionTraffic, WholeSectorsAndNoBankConflict) {
  for (const AttentionKernel kernel : {AttentionKernel::kDecode, AttentionKernel::kPrefill}) {
    for (const int num_sms : {1, 1000}) {
      SCOPED_TRACE(::testing::Message() << (kernel == AttentionKernel::kDecode ? "decode, " : "prefill, ") << num_sms);
      DeviceAttention attention(kernel == AttentionKernel::kDecode ? problem({{1, 1, 1600}, {2, 1, 77}})
                                                                   : problem({{1, 20, 1600}, {2, 50, 120}}));
      const AttentionRun split{.kernel = kernel, .num_sms = num_sms};
      EXPECT_EQ(attention.plan(split).combines.empty(), num_sms == 1);
      expect_clean(run(attention, split), attention.plan(split), GetParam());
    }
  }
}

// ---- work that nobody needs

class AttentionWork : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!simt::has_statistics()) GTEST_SKIP() << "nothing is counted here";
  }
};

constexpr int kTile = 64;  // positions

// Of `num_new` rows of one head.
simt::Statistics work(AttentionKernel kernel, int num_new, int kv_len, int window = 0) {
  DeviceAttention attention({.sequences = {{1, num_new, kv_len}}, .num_heads = 1, .num_kv_heads = 1, .window = window});
  const simt::ScopedOptions scoped({.count_traffic = true});
  simt::take_statistics();
  attention.run({.kernel = kernel, .num_sms = kernel == AttentionKernel::kDecode ? 1 : 1000});  // the small tile of rows
  return simt::take_statistics();
}

TEST_F(AttentionWork, TilesAreCopiedOnce) {
  constexpr std::int64_t kChunks = 64 / 8, kRowBytes = 64 * 2;
  const std::pair<int, int> cases[] = {{0, 0}, {1, 0}, {63, 0}, {64, 0}, {65, 0}, {127, 0}, {129, 0}, {300, 0}, {300, 100}};
  for (const auto& [kv_len, window] : cases) {
    const int begin = window > 0 ? kv_len - window : 0;
    const std::int64_t tiles = kv_len > 0 ? (kv_len - 1) / kTile + 1 - begin / kTile : 0;
    for (const AttentionKernel kernel : {AttentionKernel::kPrefill, AttentionKernel::kDecode}) {
      const simt::Statistics seen = work(kernel, 1, kv_len, window);
      const int rows = kernel == AttentionKernel::kPrefill ? cuda::kSmallPrefillTile : cuda::kDecodeRows;
      EXPECT_EQ(seen.num_async_copies, rows * kChunks + tiles * 2 * kTile * kChunks) << kv_len << ", " << window;
      EXPECT_EQ(seen.copy_reads.num_bytes, (1 + 2 * (kv_len - begin)) * kRowBytes) << kv_len << ", " << window;
    }
  }
}

// A warp of sixteen rows multiplies the tiles that they see; tiles that a row of the block does not see whole are searched, which
// takes one operation of each of four warps.
TEST_F(AttentionWork, PrefillWarpsMultiplyWhatTheirRowsSee) {
  const auto operations = [](int num_new, int kv_len, int window = 0) {
    return work(AttentionKernel::kPrefill, num_new, kv_len, window).num_warp_operations;
  };
  const std::int64_t one_tile = operations(32, 32) - operations(16, 16), search = 4;
  EXPECT_GT(one_tile, 0);
  EXPECT_EQ(operations(16, 16), operations(1, 1)) << "warps without rows";
  EXPECT_EQ(operations(17, 17), operations(32, 32));
  EXPECT_EQ(operations(1, 63), operations(1, 64) + search);
  EXPECT_EQ(operations(1, 65), operations(1, 128) + search);
  EXPECT_EQ(operations(1, 128) - operations(1, 64), operations(1, 192) - operations(1, 128));
  // Positions 48 to 63 and 64 to 79: the first warp sees one tile of two.
  EXPECT_EQ(operations(32, 80) - operations(16, 80), one_tile + search);
  // Of 64 to 79 and 80 to 95 only the first see the tile before.
  EXPECT_EQ(operations(32, 96, 17) - operations(16, 80, 17), one_tile);
  EXPECT_EQ(operations(32, 96, 18) - operations(16, 80, 18), 2 * one_tile);
  // Position 200 sees 64 and what follows, the next one all but 64.
  EXPECT_EQ(operations(1, 202, 137) - operations(1, 201, 137), search);
}

// A warp takes sixteen positions of a tile.
TEST_F(AttentionWork, DecodeWarpsMultiplyWhatIsSeen) {
  const auto operations = [](int kv_len, int window = 0) {
    return work(AttentionKernel::kDecode, 1, kv_len, window).num_warp_operations;
  };
  const std::int64_t one_part = operations(32) - operations(16), search = 1;
  EXPECT_GT(one_part, 0);
  EXPECT_EQ(operations(48) - operations(32), one_part);
  EXPECT_EQ(operations(17) - operations(16), one_part + search);
  EXPECT_EQ(operations(1), operations(16) + search);
  EXPECT_EQ(operations(64, 48) - operations(64, 32), one_part);
  EXPECT_EQ(operations(64, 33) - operations(64, 32), one_part + search);
}

TEST_F(AttentionWork, EntriesOfPagesAreReadOnceWhereSomebodySeesThem) {
  constexpr int kBlock = 8;
  for (const int kv_len : {64, 65, 72, 200}) {
    for (const int window : {0, 16, 17, 70}) {
      DeviceAttention attention(
          {.sequences = {{1, 1, kv_len}}, .num_heads = 1, .num_kv_heads = 1, .block_size = kBlock, .window = window});
      const TensorView pages = attention.args().page_indices;
      for (const AttentionKernel kernel : {AttentionKernel::kPrefill, AttentionKernel::kDecode}) {
        const simt::ReadWatch watch(pages.data, static_cast<std::size_t>(pages.num_bytes()));
        attention.run({.kernel = kernel});
        for (int page = 0; page < pages.dim(0); ++page) {
          bool is_seen = false;
          for (int i = 0; i < kBlock; ++i) is_seen |= attention.layout().is_seen({1, 1, kv_len}, page * kBlock + i);
          EXPECT_EQ(watch.num_reads()[static_cast<std::size_t>(page) * 4] > 0, is_seen)
              << kv_len << ", " << window << ": " << page;
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire::testing
