// The lists of attention on their way through the uploader: whatever a launch takes from the host is a function of the key.
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
  std::map<std::pair<std::uint64_t, std::size_t>, Launch> launches;
  std::mt19937 random(3);
  int repeated = 0, waves = 0;
  for (int i = 0; i < 3000; ++i) {
    std::vector<std::int32_t> kv_lens(1 + random() % 8);
    for (std::int32_t& length : kv_lens) length = static_cast<std::int32_t>(1 + random() % (i % 2 == 0 ? 40'000 : 3'000));
    std::vector<std::int32_t> list;
    const auto rule = i % 3 == 0 ? cuda::SplitRule::kBalanced : cuda::SplitRule::kDeterministic;
    const std::uint64_t key = append_work(plan_of(kv_lens, rule), list);
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

}  // namespace
}  // namespace quire
