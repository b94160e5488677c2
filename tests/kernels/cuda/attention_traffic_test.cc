// What the attention kernels move: each live key and value is read from memory once per KV head's group of query heads in decode,
// nothing else of the pool is read, copies and stores take whole sectors, and no access to shared memory meets a bank conflict.
#include <gtest/gtest.h>

#include "tests/kernels/cuda/attention_problem.h"
#include "tests/support/simt/emulator.h"

namespace quire::testing {
namespace {

using cuda::SplitRule;

class AttentionTraffic : public ::testing::TestWithParam<int> {
 protected:
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

}  // namespace
}  // namespace quire::testing
