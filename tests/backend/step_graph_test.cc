// Recorded steps: a key's recording runs for that key and no other, however alike they look; the ones used longest ago are
// dropped; and a device without memory for a recording runs the ops as they are.
#include "backend/cuda/step_graph.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "simt/runtime.h"

namespace quire {
namespace {

class StepGraphsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    before_ = simt::runtime_objects();
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override {
    simt::fail_allocation_after(-1);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
    EXPECT_EQ(simt::runtime_objects(), before_);
  }

  // What the device ends up computing: the number of the launch that ran.
  int launched(StepGraphs& graphs, const ReplayKey& key, int number) {
    int ran = -1;
    graphs.run(key, stream_, [&] { ASSERT_EQ(simt::enqueue(stream_, [this, number] { *result_ = number; }), cudaSuccess); });
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    ran = *result_;
    *result_ = -1;
    return ran;
  }
  std::int64_t replays() const { return simt::runtime_counts().graph_launches; }

  cudaStream_t stream_ = nullptr;
  std::unique_ptr<int> result_ = std::make_unique<int>(-1);
  simt::RuntimeObjects before_;
};

TEST_F(StepGraphsTest, TheSecondCallRecordsAndLaterOnesReplay) {
  StepGraphs graphs;
  const std::int64_t before = replays();
  EXPECT_EQ(launched(graphs, {1, 2}, 10), 10);
  EXPECT_EQ(replays() - before, 0);
  EXPECT_EQ(launched(graphs, {1, 2}, 11), 11);  // what is recorded runs too
  EXPECT_EQ(launched(graphs, {1, 2}, 12), 11);  // and stands for what has the same key
  EXPECT_EQ(replays() - before, 2);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(launched(graphs, {}, 20 + i), 20 + i) << "an empty key is never recorded";
  EXPECT_EQ(replays() - before, 2);
}

// Keys are what they hold. A digest of any of these could meet another's: of 300 keys in pairs that differ in one bit, in their
// lengths, or in the order of their words, none runs what another recorded.
TEST_F(StepGraphsTest, NoKeyRunsWhatAnotherRecorded) {
  StepGraphs graphs(1000);
  std::mt19937_64 random(1);
  std::map<ReplayKey, int> number_of;
  ReplayKey base(12);
  for (std::uint64_t& word : base) word = random();
  for (int i = 0; i < 100; ++i) {
    ReplayKey one_bit = base, turned = base, longer = base;
    one_bit[random() % 12] ^= std::uint64_t{1} << random() % 64;
    std::swap(turned[random() % 12], turned[random() % 12]);
    longer.insert(longer.end(), 1 + random() % 9, 0);
    for (const ReplayKey& key : {one_bit, turned, longer}) number_of.try_emplace(key, static_cast<int>(number_of.size()));
  }
  for (int turn = 0; turn < 3; ++turn) {
    for (const auto& [key, number] : number_of) ASSERT_EQ(launched(graphs, key, number), number);
  }
}

TEST_F(StepGraphsTest, DropsWhatWasUsedLongestAgo) {
  StepGraphs graphs(4);
  const auto replayed = [&](std::uint64_t key) {
    const std::int64_t before = replays();
    EXPECT_EQ(launched(graphs, {key}, static_cast<int>(key)), static_cast<int>(key));
    return replays() > before;
  };
  for (std::uint64_t key = 1; key <= 4; ++key) {
    EXPECT_FALSE(replayed(key));
    EXPECT_TRUE(replayed(key));
  }
  EXPECT_TRUE(replayed(1));   // now 2 is the oldest
  EXPECT_FALSE(replayed(5));  // takes its place
  for (const std::uint64_t key : {1, 3, 4}) EXPECT_TRUE(replayed(key)) << key;
  EXPECT_FALSE(replayed(2));  // anew, in the place of 5
  EXPECT_FALSE(replayed(5));
  const simt::RuntimeObjects now = simt::runtime_objects();
  EXPECT_LE(now.graphs - before_.graphs, 4);
}

TEST_F(StepGraphsTest, AStepThatThrowsIsNotRecorded) {
  StepGraphs graphs;
  EXPECT_EQ(launched(graphs, {7}, 1), 1);
  EXPECT_THROW(graphs.run({7}, stream_, [] { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_EQ(launched(graphs, {7}, 2), 2);
  EXPECT_EQ(launched(graphs, {7}, 3), 2);
}

TEST_F(StepGraphsTest, WithoutMemoryForARecordingOpsRunAsTheyAre) {
  StepGraphs graphs;
  EXPECT_EQ(launched(graphs, {7}, 1), 1);
  simt::fail_allocation_after(0);
  const std::int64_t before = replays();
  for (int i = 2; i < 6; ++i) EXPECT_EQ(launched(graphs, {7}, i), i);
  EXPECT_EQ(replays(), before);
}

}  // namespace
}  // namespace quire
