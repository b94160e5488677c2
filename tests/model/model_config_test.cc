#include "model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire {
namespace {

using ::testing::ElementsAre;

TEST(KvGroups, HaveEqualSizes) {
  const auto layouts = [](std::vector<int> windows) {
    ModelConfig config;
    config.num_layers = static_cast<int>(windows.size());
    config.layer_windows = std::move(windows);
    std::vector<std::pair<int, std::vector<int>>> groups;
    for (const KvGroupLayout& group : kv_group_layouts(config)) groups.emplace_back(group.window, group.layers);
    return groups;
  };
  using Layers = std::vector<int>;
  EXPECT_THAT(layouts({0, 0, 0}), ElementsAre(std::pair(0, Layers{0, 1, 2})));
  EXPECT_THAT(layouts({5, 5}), ElementsAre(std::pair(5, Layers{0, 1})));
  EXPECT_THAT(layouts({5, 0, 5, 5, 5, 0}),
              ElementsAre(std::pair(0, Layers{1, 5}), std::pair(5, Layers{0, 2}), std::pair(5, Layers{3, 4})));
  EXPECT_THAT(layouts({5, 5, 5, 0}),
              ElementsAre(std::pair(0, Layers{3}), std::pair(5, Layers{0}), std::pair(5, Layers{1}), std::pair(5, Layers{2})));
}

}  // namespace
}  // namespace quire
