// The lists of attention on their way through the uploader: whatever a launch takes from the host is a function of the key, and
// no list is longer than was reserved for it.
#include "backend/cuda/attention_work.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace quire {
namespace {

cuda::SplitPlan plan_of(const std::vector<std::int32_t>& kv_lens, cuda::SplitRule rule) {
  std::vector<std::int32_t> q_indptr{0};
  for (std::size_t i = 0; i < kv_lens.size(); ++i) q_indptr.push_back(q_indptr.back() + 1);
  const cuda::SplitShape shape{.num_heads = 8,
                               .num_kv_heads = 8,
                               .head_size = 64,
                               .num_sms = 4,
                               .rule = rule,
                               .workspace_bytes = std::int64_t{1} << 16};  // small: several waves
  return rule == cuda::SplitRule::kBalanced ? plan_decode(shape, q_indptr, kv_lens) : plan_prefill(shape, q_indptr, kv_lens);
}

TEST(AttentionWork, EqualKeysGiveEqualLaunches) {
  using Launch = std::vector<std::int64_t>;
  std::map<std::pair<std::vector<std::int32_t>, std::size_t>, Launch> launches;
  std::mt19937 random(3);
  int repeated = 0, waves = 0;
  for (int i = 0; i < 3000; ++i) {
    std::vector<std::int32_t> kv_lens(1 + random() % 8);
    for (std::int32_t& length : kv_lens) length = static_cast<std::int32_t>(1 + random() % (i % 2 == 0 ? 40'000 : 3'000));
    std::vector<std::int32_t> list, key;
    const auto rule = i % 3 == 0 ? cuda::SplitRule::kBalanced : cuda::SplitRule::kDeterministic;
    append_work(plan_of(kv_lens, rule), list, key);
    const AttentionWork work{list.data(), TensorView(list.data(), DType::kI32, {static_cast<std::int64_t>(list.size())})};
    const cuda::AttentionPlan plan = attention_plan(work, 64, {list.data(), std::int64_t{1} << 16});
    Launch launch{plan.row_tile, plan.num_partial_rows, plan.items.dim(0),
                  plan.combines.data == nullptr ? 0 : plan.combines.dim(0)};
    for (const cuda::SplitWave& wave : plan.waves) {
      launch.insert(launch.end(), {wave.first_item, wave.num_items, wave.first_combine, wave.num_combines});
    }
    waves += plan.waves.size() > 1 ? 1 : 0;
    const auto [place, is_new] = launches.try_emplace({key, list.size()}, launch);
    ASSERT_EQ(place->second, launch) << "step " << i;
    repeated += is_new ? 0 : 1;
  }
  EXPECT_GT(repeated, 300);
  EXPECT_GT(waves, 100);
}

cuda::SplitSize size_of(const cuda::SplitPlan& plan) {
  return {static_cast<std::int64_t>(plan.items.size()), static_cast<std::int64_t>(plan.combines.size()),
          static_cast<std::int64_t>(plan.waves.size())};
}

// Steps at the limits and below them, of few and of many heads, with workspaces that nothing fits and such that all fits.
TEST(AttentionWork, NoListIsLongerThanTheMost) {
  std::mt19937 random(7);
  const auto any = [&](std::initializer_list<int> values) { return values.begin()[random() % values.size()]; };
  double fullest = 0.0;
  for (int i = 0; i < 4000; ++i) {
    const int kv_heads = any({1, 2, 8}), group = any({1, 3, 8, 32}), context = any({64, 2048, 2049, 9000, 40'000});
    cuda::SplitShape shape{.num_heads = kv_heads * group,
                           .num_kv_heads = kv_heads,
                           .head_size = any({64, 80, 128, 256}),
                           .window = any({0, 0, 1, 100, 4096}),
                           .num_sms = any({1, 16, 132}),
                           .rule = i % 2 == 0 ? cuda::SplitRule::kBalanced : cuda::SplitRule::kDeterministic};
    const std::int64_t one_row = (context / 256 + 3) * cuda::partial_bytes(kv_heads, shape.head_size);
    shape.workspace_bytes = one_row * any({1, 5, 40, 1000});
    const bool is_decode = i % 4 == 0;
    const int sequences = 1 + static_cast<int>(random() % 12), tokens = is_decode ? sequences : sequences + any({0, 1, 63, 500});
    std::vector<std::int32_t> q_indptr{0}, kv_lens;
    for (int s = 0, left = tokens; s < sequences; ++s) {
      const int spare = left - (sequences - s),
                count = 1 + (s + 1 == sequences ? spare : static_cast<int>(random() % (spare + 1)));
      left -= count;
      q_indptr.push_back(q_indptr.back() + count);
      kv_lens.push_back(std::min(context, i % 3 == 0 ? context : count + static_cast<int>(random() % context)));
      if (kv_lens.back() < count) q_indptr.back() -= count - kv_lens.back();
    }
    const cuda::SplitPlan plan = is_decode ? plan_decode(shape, q_indptr, kv_lens) : plan_prefill(shape, q_indptr, kv_lens);
    const cuda::SplitSize most =
        most_work(shape, tokens, sequences, context, is_decode ? cuda::kDecodeRows : cuda::kSmallPrefillTile);
    const cuda::SplitSize size = size_of(plan);
    ASSERT_LE(size.num_items, most.num_items) << "step " << i;
    ASSERT_LE(size.num_combines, most.num_combines) << "step " << i;
    ASSERT_LE(size.num_waves, most.num_waves) << "step " << i;
    fullest = std::max(fullest, static_cast<double>(size.num_items) / static_cast<double>(most.num_items));
    std::vector<std::int32_t> list, on_host;
    append_work(plan, list, on_host);
    ASSERT_LE(static_cast<std::int64_t>(list.size()), most_ints(most)) << "step " << i;
  }
  EXPECT_GT(fullest, 0.6);  // the bound is near what steps need
}

// What it costs: a usual model at its full context.
TEST(AttentionWork, TheMostIsSmallForAUsualModel) {
  const cuda::SplitShape shape{.num_heads = 32,
                               .num_kv_heads = 8,
                               .head_size = 128,
                               .num_sms = 132,
                               .rule = cuda::SplitRule::kDeterministic,
                               .workspace_bytes = std::int64_t{64} << 20};
  EXPECT_LT(most_ints(most_work(shape, 512, 256, 131072, cuda::kSmallPrefillTile)) * 4, std::int64_t{2} << 20);
}

}  // namespace
}  // namespace quire
