// The work lists of attention: every row sees every position it is to see exactly once, parts are balanced, lists fit the
// workspace, and the deterministic rule cuts where the positions say.
#include "kernels/cuda/split_plan.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <tuple>

#include "tests/support/expect_error.h"

namespace quire::cuda {
namespace {

struct Step {
  SplitShape shape{.num_heads = 8, .num_kv_heads = 2, .head_size = 128, .num_sms = 132, .workspace_bytes = std::int64_t{1} << 30};
  std::vector<std::int32_t> q_lens, kv_lens;

  std::vector<std::int32_t> q_indptr() const {
    std::vector<std::int32_t> indptr{0};
    for (const std::int32_t n : q_lens) indptr.push_back(indptr.back() + n);
    return indptr;
  }
  SplitPlan decode() const { return plan_decode(shape, q_indptr(), kv_lens); }
  SplitPlan prefill() const { return plan_prefill(shape, q_indptr(), kv_lens); }
};

Step decode_step(std::vector<std::int32_t> kv_lens) {
  Step step;
  step.q_lens.assign(kv_lens.size(), 1);
  step.kv_lens = std::move(kv_lens);
  return step;
}

std::int64_t longest(const SplitPlan& plan) {
  std::int64_t length = 0;
  for (const WorkItem& item : plan.items) length = std::max<std::int64_t>(length, item.end - item.begin);
  return length;
}

using RowKey = std::pair<std::int32_t, std::int32_t>;  // sequence, first row

// The items of each row range, in ascending order of positions.
std::map<RowKey, std::vector<WorkItem>> by_rows(const SplitPlan& plan) {
  std::map<RowKey, std::vector<WorkItem>> parts;
  for (const WorkItem& item : plan.items) parts[{item.sequence, item.first_row}].push_back(item);
  for (auto& [key, items] : parts) {
    std::sort(items.begin(), items.end(), [](const WorkItem& a, const WorkItem& b) { return a.begin < b.begin; });
  }
  return parts;
}

// Every packed row of every sequence in exactly one range of rows, whose parts follow each other without gap or overlap over
// exactly the positions its rows see, cut at multiples of kSplitAlignment.
void check_coverage(const Step& step, const SplitPlan& plan) {
  const int group = step.shape.num_heads / step.shape.num_kv_heads;
  std::vector<std::int32_t> next_row(step.q_lens.size(), 0);
  for (const auto& [key, parts] : by_rows(plan)) {
    const auto [sequence, first_row] = key;
    const auto s = static_cast<std::size_t>(sequence);
    const std::int32_t num_rows = parts[0].num_rows;
    ASSERT_EQ(first_row, next_row[s]);
    ASSERT_LE(num_rows, plan.row_tile);
    next_row[s] += num_rows;
    const int first_position = step.kv_lens[s] - step.q_lens[s];
    const int lowest = first_position + first_row / group, highest = first_position + (first_row + num_rows - 1) / group;
    ASSERT_EQ(parts.front().begin, step.shape.window > 0 ? std::max(0, lowest - step.shape.window + 1) : 0);
    ASSERT_EQ(parts.back().end, std::max(parts.front().begin, highest + 1));
    for (std::size_t i = 0; i < parts.size(); ++i) {
      ASSERT_EQ(parts[i].num_rows, num_rows);
      if (parts.size() > 1) {
        ASSERT_LT(parts[i].begin, parts[i].end);
      }
      if (i == 0) continue;
      ASSERT_EQ(parts[i].begin, parts[i - 1].end);
      ASSERT_EQ(parts[i].begin % kSplitAlignment, 0);
    }
  }
  for (std::size_t s = 0; s < next_row.size(); ++s) ASSERT_EQ(next_row[s], step.q_lens[s] * group);
}

// Parts of split rows own distinct partial rows within the wave's workspace, and one combine of the same wave takes each.
void check_partials(const Step& step, const SplitPlan& plan) {
  std::size_t num_items = 0, num_combines = 0;
  for (const SplitWave& wave : plan.waves) {
    ASSERT_EQ(static_cast<std::size_t>(wave.first_item), num_items);
    ASSERT_EQ(static_cast<std::size_t>(wave.first_combine), num_combines);
    ASSERT_GT(wave.num_items, 0);
    num_items += static_cast<std::size_t>(wave.num_items);
    num_combines += static_cast<std::size_t>(wave.num_combines);
    std::map<RowKey, std::set<std::int32_t>> written;
    std::map<std::int32_t, std::int32_t> owners;  // from first partial row to one behind the last
    for (int i = wave.first_item; i < wave.first_item + wave.num_items; ++i) {
      const WorkItem& item = plan.items[static_cast<std::size_t>(i)];
      if (item.partial < 0) continue;
      written[{item.sequence, item.first_row}].insert(item.partial);
      ASSERT_TRUE(owners.emplace(item.partial, item.partial + item.num_rows * step.shape.num_kv_heads).second);
    }
    std::int32_t end = 0;
    for (const auto& [first, last] : owners) {
      ASSERT_GE(first, end);
      end = last;
    }
    ASSERT_LE(end, plan.num_partial_rows);
    std::size_t num_taken = 0;
    for (int i = wave.first_combine; i < wave.first_combine + wave.num_combines; ++i) {
      const CombineItem& combine = plan.combines[static_cast<std::size_t>(i)];
      std::set<std::int32_t> expected;
      for (int part = 0; part < combine.num_parts; ++part) {
        expected.insert(combine.partial + part * step.shape.num_kv_heads * combine.num_rows);
      }
      ASSERT_GT(combine.num_parts, 1);
      ASSERT_EQ((written[{combine.sequence, combine.first_row}]), expected);
      ++num_taken;
    }
    ASSERT_EQ(num_taken, written.size());
  }
  ASSERT_EQ(num_items, plan.items.size());
  ASSERT_EQ(num_combines, plan.combines.size());
  ASSERT_LE(partial_bytes(plan.num_partial_rows, step.shape.head_size), step.shape.workspace_bytes);
}

// The parts stand in ascending order of their partial rows, as combine adds them up.
void check_order(const SplitPlan& plan) {
  for (const auto& [key, parts] : by_rows(plan)) {
    for (std::size_t i = 1; i < parts.size(); ++i) ASSERT_GT(parts[i].partial, parts[i - 1].partial);
    ASSERT_EQ(parts[0].partial < 0, parts.size() == 1);
  }
}

RC_GTEST_PROP(SplitPlan, CoversEveryRowAndPositionOnce, ()) {
  Step step;
  const int group = *rc::gen::inRange(1, 33);
  step.shape.num_kv_heads = *rc::gen::inRange(1, 9);
  step.shape.num_heads = group * step.shape.num_kv_heads;
  step.shape.head_size = *rc::gen::element(64, 80, 96, 128, 256);
  step.shape.window = *rc::gen::element(0, 0, 1, 100, 4096);
  step.shape.num_sms = *rc::gen::element(1, 16, 132, 1000);
  const bool is_decode = *rc::gen::arbitrary<bool>();
  if (!is_decode && *rc::gen::arbitrary<bool>()) step.shape.rule = SplitRule::kDeterministic;
  const int num_sequences = *rc::gen::inRange(0, 12);
  for (int s = 0; s < num_sequences; ++s) {
    step.q_lens.push_back(is_decode ? 1 : *rc::gen::inRange(0, 400));
    step.kv_lens.push_back(step.q_lens.back() + *rc::gen::element(0, 1, 63, 64, 1000, 2047, 2048, 5000, 40000));
  }
  const SplitPlan plan = is_decode ? step.decode() : step.prefill();
  check_coverage(step, plan);
  check_partials(step, plan);
  check_order(plan);
  RC_ASSERT(!::testing::Test::HasFatalFailure());
}

TEST(SplitPlan, OneLongSequenceFillsTheDevice) {
  const Step step = decode_step({32768});
  const SplitPlan plan = step.decode();
  const auto blocks = static_cast<std::int64_t>(plan.items.size()) * step.shape.num_kv_heads;
  EXPECT_GE(blocks, 132);
  EXPECT_LE(longest(plan), 2 * 256);
}

TEST(SplitPlan, ShortSequencesStayWhole) {
  const SplitPlan plan = decode_step({1, 0, 200, 383}).decode();
  EXPECT_EQ(plan.items.size(), 4u);
  EXPECT_TRUE(plan.combines.empty());
  EXPECT_EQ(plan.num_partial_rows, 0);
  Step window = decode_step({150, 97, 1000});  // ranges that begin just before a multiple of the alignment
  window.shape.window = 40;
  EXPECT_TRUE(window.decode().combines.empty());
}

TEST(SplitPlan, AFullDeviceNeedsNoSplit) {
  Step step = decode_step(std::vector<std::int32_t>(64, 4096));
  step.shape.num_heads = 32;
  step.shape.num_kv_heads = 8;
  EXPECT_TRUE(step.decode().combines.empty());
}

TEST(SplitPlan, NoItemIsMuchLongerThanAnEqualShare) {
  Step step = decode_step({100, 131072, 2000, 30, 700, 9000, 64, 128});
  const SplitPlan plan = step.decode();
  std::int64_t total = 0;
  for (const std::int32_t n : step.kv_lens) total += n;
  const std::int64_t share = total * step.shape.num_kv_heads / (2 * step.shape.num_sms);
  EXPECT_LE(longest(plan), share * 3 / 2 + 2 * kSplitAlignment);
  for (std::size_t i = 1; i < plan.items.size(); ++i) {
    const auto length = [&](std::size_t at) { return plan.items[at].end - plan.items[at].begin; };
    EXPECT_GE(length(i - 1), length(i)) << "the longest first";
  }
}

TEST(SplitPlan, PrefillSplitsAShortChunkOfALongContext) {
  Step step;
  step.q_lens = {64};
  step.kv_lens = {32768};
  const SplitPlan plan = step.prefill();
  EXPECT_GE(plan.items.size() * 2, 132u);
  EXPECT_LE(longest(plan), 3 * 1024 / 2 + kSplitAlignment);
  step.q_lens = {500, 500, 500};
  step.kv_lens = {500, 500, 500};
  EXPECT_TRUE(step.prefill().combines.empty()) << "parts this short do not pay";
}

TEST(SplitPlan, WindowsAreWhatIsShared) {
  Step step = decode_step({100000, 100000});
  step.shape.window = 512;
  for (const WorkItem& item : step.decode().items) EXPECT_GE(item.begin, 100000 - 512);
}

TEST(SplitPlan, DeterministicCutsDependOnPositionsAlone) {
  Step step = decode_step({5000, 300, 2048, 2049});
  step.shape.rule = SplitRule::kDeterministic;
  for (const int num_sms : {1, 132}) {
    step.shape.num_sms = num_sms;
    for (const auto& [key, parts] : by_rows(step.prefill())) {
      for (std::size_t i = 1; i < parts.size(); ++i) EXPECT_EQ(parts[i].begin, static_cast<int>(i) * kDeterministicSegment);
    }
    EXPECT_EQ(step.prefill().items.size(), 3u + 1 + 1 + 2);
  }
}

TEST(SplitPlan, EqualInputsGiveEqualPlans) {
  const Step step = decode_step({5000, 300, 5000, 2049, 5000});
  const SplitPlan a = step.decode(), b = step.decode();
  ASSERT_EQ(a.items.size(), b.items.size());
  EXPECT_EQ(std::memcmp(a.items.data(), b.items.data(), a.items.size() * sizeof(WorkItem)), 0);
}

TEST(SplitPlan, WavesFitTheWorkspace) {
  Step step = decode_step({5000, 5000, 300, 5000, 9000});
  step.shape.rule = SplitRule::kDeterministic;
  const std::int64_t rows = 5 * 4 * 2;  // parts, group, KV heads of the longest
  step.shape.workspace_bytes = partial_bytes(rows, step.shape.head_size);
  const SplitPlan plan = step.prefill();
  EXPECT_GT(plan.waves.size(), 1u);
  check_coverage(step, plan);
  check_partials(step, plan);
  step.shape.workspace_bytes = partial_bytes(5 * 2, step.shape.head_size);  // one row with its parts
  check_coverage(step, step.prefill());
  step.shape.workspace_bytes -= 1;
  EXPECT_ERROR(step.prefill(), ErrorCode::kInvalidArgument, "workspace_bytes is");
}

// A step is never refused for its length: where a tile's rows with all their parts do not fit, items have fewer rows.
TEST(SplitPlan, ALongContextWithManyHeadsFitsASmallWorkspace) {
  Step step;
  step.shape.num_heads = step.shape.num_kv_heads = 32;
  step.shape.workspace_bytes = std::int64_t{64} << 20;
  step.q_lens = {2048};
  step.kv_lens = {131072};
  for (const SplitRule rule : {SplitRule::kDeterministic, SplitRule::kBalanced}) {
    step.shape.rule = rule;
    const SplitPlan plan = step.prefill();
    check_coverage(step, plan);
    EXPECT_LE(partial_bytes(plan.num_partial_rows, step.shape.head_size), step.shape.workspace_bytes);
  }
}

TEST(SplitPlan, TheLargeTileWhereItFillsTheDevice) {
  Step step;
  step.q_lens = {2048};
  step.kv_lens = {2048};
  EXPECT_EQ(step.prefill().row_tile, kSmallPrefillTile);  // 64 tiles of 128 rows, 2 KV heads, 132 SMs
  step.q_lens = {4096};
  step.kv_lens = {4096};
  EXPECT_EQ(step.prefill().row_tile, kLargePrefillTile);
  step.shape.head_size = 256;
  EXPECT_EQ(step.prefill().row_tile, kSmallPrefillTile);
}

TEST(SplitPlan, TheLargeTileFromOneForEachSmOn) {
  Step step;
  for (const auto& [q_lens, row_tile] :
       std::initializer_list<std::pair<std::vector<std::int32_t>, int>>{{{2112}, kLargePrefillTile},
                                                                        {{1056, 1056}, kLargePrefillTile},
                                                                        {{2080}, kSmallPrefillTile},
                                                                        {{1024, 1040}, kSmallPrefillTile}}) {
    step.q_lens = step.kv_lens = q_lens;
    EXPECT_EQ(step.prefill().row_tile, row_tile) << q_lens[0];
  }
}

// ---- plans as computed by hand

// Where the parts of sequence 0 begin, and the end.
std::vector<std::int32_t> bounds(const SplitPlan& plan) {
  std::vector<std::int32_t> at;
  const std::map<RowKey, std::vector<WorkItem>> rows = by_rows(plan);
  for (const WorkItem& item : rows.at({0, 0})) at.push_back(item.begin);
  at.push_back(rows.at({0, 0}).back().end);
  return at;
}

TEST(SplitPlan, BalancedParts) {
  using Bounds = std::vector<std::int32_t>;
  const auto decode = [](int kv_len, int num_sms, int window = 0) {
    Step step = decode_step({kv_len});
    step.shape.num_sms = num_sms;
    step.shape.window = window;
    return bounds(step.decode());
  };
  EXPECT_EQ(decode(1000, 2), (Bounds{0, 512, 1000}));            // a share is 2 x 1,000 / 4
  EXPECT_EQ(decode(1000, 4), (Bounds{0, 256, 512, 768, 1000}));  // no shorter than 256
  EXPECT_EQ(decode(5000, 7), (Bounds{0, 768, 1536, 2304, 3072, 3840, 4608, 5000}));
  EXPECT_EQ(decode(383, 132), (Bounds{0, 383}));
  EXPECT_EQ(decode(384, 132), (Bounds{0, 192, 384}));
  EXPECT_EQ(decode(1000, 132, 600), (Bounds{400, 704, 1000}));  // 616 positions from 384 on
  EXPECT_EQ(decode(900, 132, 400), (Bounds{500, 704, 900}));
  EXPECT_EQ(decode(10000, 2, 5000), (Bounds{5000, 7552, 10000}));
  Step chunk;
  chunk.q_lens = {16};
  chunk.kv_lens = {3000};
  EXPECT_EQ(bounds(chunk.prefill()), (Bounds{0, 1024, 2048, 3000}));
  Step two = decode_step({2000, 1000});
  two.shape.num_sms = 3;
  EXPECT_EQ(bounds(two.decode()), (Bounds{0, 1024, 2000}));  // a share is 2 x 3,000 / 6
}

TEST(SplitPlan, EqualLengthsKeepTheirOrder) {
  const SplitPlan plan = decode_step(std::vector<std::int32_t>(40, 100)).decode();
  for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(plan.items[i].sequence, static_cast<int>(i));
}

TEST(SplitPlan, AWaveMayFillTheWorkspace) {
  Step step = decode_step({5000, 5000});
  step.shape.rule = SplitRule::kDeterministic;
  constexpr std::int64_t kRows = 3 * 4 * 2;  // parts, group, KV heads
  const std::tuple<std::int64_t, std::size_t, std::size_t> cases[] = {
      {2 * kRows, 1, 6}, {2 * kRows - 1, 2, 6}, {kRows, 2, 6}, {kRows - 1, 4, 12}};
  for (const auto& [rows, num_waves, num_items] : cases) {
    step.shape.workspace_bytes = partial_bytes(rows, step.shape.head_size);
    const SplitPlan plan = step.prefill();
    EXPECT_EQ(plan.waves.size(), num_waves) << rows;
    EXPECT_EQ(plan.items.size(), num_items) << rows;
    check_partials(step, plan);
  }
  EXPECT_EQ(partial_bytes(3, 64), 3 * 65 * 4);
  step.q_lens = step.kv_lens = {16};
  EXPECT_EQ(step.prefill().items.size(), 1u) << "a single part needs no workspace";
}

TEST(SplitPlan, TheMostWorkOfASteps) {
  const auto most = [](const SplitShape& shape, std::int64_t tokens, std::int64_t context, int row_tile) {
    const SplitSize size = most_work(shape, tokens, 8, context, row_tile);
    return std::vector<std::int64_t>{size.num_items, size.num_combines, size.num_waves};
  };
  using Size = std::vector<std::int64_t>;
  SplitShape shape = Step().shape;
  EXPECT_EQ(most(shape, 64, 4096, kDecodeRows), (Size{24 + 6 + 1 + 132, 24, 25}));
  EXPECT_EQ(most(shape, 64, 128, kDecodeRows), (Size{24 * 2, 24, 25}));
  shape.num_sms = 10;
  EXPECT_EQ(most(shape, 512, 10000, kSmallPrefillTile), (Size{40 + 10 + 1 + 10, 40, 41}));
  EXPECT_EQ(most(shape, 512, 500, kSmallPrefillTile), (Size{61, 40, 41}));
  shape.num_sms = 1000;
  EXPECT_EQ(most(shape, 512, 500, kSmallPrefillTile), (Size{40 * 2, 40, 41}));
  shape.rule = SplitRule::kDeterministic;
  constexpr std::int64_t kPartBytes = 50 * 2 * 129 * 4;  // 100,000 / 2,048 + 2 parts, KV heads, floats of a row
  EXPECT_EQ(most(shape, 512, 100000, kSmallPrefillTile), (Size{40 * 50, 40, 41}));
  shape.workspace_bytes = 128 * kPartBytes;
  EXPECT_EQ(most(shape, 512, 100000, kSmallPrefillTile), (Size{40 * 50, 40, 41}));
  shape.workspace_bytes = 20 * kPartBytes;  // halved, ten rows fit at least
  EXPECT_EQ(most(shape, 512, 100000, kSmallPrefillTile), (Size{244 * 50, 244, 245}));
  shape.workspace_bytes = 19 * kPartBytes;
  EXPECT_EQ(most(shape, 512, 100000, kSmallPrefillTile), (Size{244 * 50, 244, 245}));
  shape.workspace_bytes = kPartBytes - 1;
  EXPECT_EQ(most(shape, 512, 100000, kSmallPrefillTile), (Size{2088 * 50, 2088, 2089}));
  shape.workspace_bytes = std::int64_t{1} << 30;
  shape.window = 2000;  // and a tile of 128 rows
  EXPECT_EQ(most(shape, 512, 100000, kSmallPrefillTile), (Size{40 * 3, 40, 41}));
  shape.window = 1;
  EXPECT_EQ(most(shape, 512, 100000, kSmallPrefillTile), (Size{40 * 2, 40, 41}));
}

TEST(SplitPlan, ShapesThatMakeNoSense) {
  const auto plan = [](int num_heads, int num_kv_heads, int num_sms, std::vector<std::int32_t> q_lens) {
    Step step = decode_step({100});
    step.shape.num_heads = num_heads, step.shape.num_kv_heads = num_kv_heads, step.shape.num_sms = num_sms;
    step.q_lens = std::move(q_lens);
    return step.decode();
  };
  EXPECT_EQ(plan(6, 3, 1, {1}).items.size(), 1u);
  EXPECT_THROW(plan(7, 3, 1, {1}), Error);
  EXPECT_THROW(plan(8, 3, 1, {1}), Error);
  EXPECT_THROW(plan(6, 0, 1, {1}), Error);
  EXPECT_THROW(plan(6, -3, 1, {1}), Error);
  EXPECT_THROW(plan(6, 3, 0, {1}), Error);
  EXPECT_THROW(plan(6, 3, 1, {}), Error);
  EXPECT_THROW(plan(6, 3, 1, {1, 1}), Error);
}

}  // namespace
}  // namespace quire::cuda
