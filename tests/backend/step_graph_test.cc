// Recorded steps: a key's recording runs for that key and no other, however alike they look; the ones used longest ago are
// dropped; and a device without memory for a recording runs the ops as they are.
#include "backend/cuda/step_graph.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <bit>
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
    simt::set_most_uploaded_graphs(-1);
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

// ---- keys are what they hold: none of these runs what another recorded

// Of 300 keys in pairs that differ in one bit, in their lengths, or in the order of their words.
TEST_F(StepGraphsTest, KeysThatLookAlikeAreToldApart) {
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

// Digests of 64 bits that one might take in the place of keys.
std::uint64_t fnv(const ReplayKey& key) {
  std::uint64_t digest = 0xcbf29ce484222325u;
  for (const std::uint64_t word : key) digest = (digest ^ word) * 0x100000001b3u;
  return digest;
}
std::uint64_t combined(const ReplayKey& key) {
  std::uint64_t digest = 0;
  for (const std::uint64_t word : key) digest ^= word + 0x9e3779b97f4a7c15u + (digest << 6) + (digest >> 2);
  return digest;
}
std::uint64_t xxh64(const ReplayKey& key) { return XXH64(key.data(), key.size() * sizeof(key.front()), 0); }

// Keys that differ and have the same digest: after another first word a later one brings the state back.
using Pair = std::pair<ReplayKey, ReplayKey>;
Pair collide_fnv(ReplayKey key) {
  ReplayKey other = key;
  other[0] += 1;
  other[1] ^= fnv({key[0]}) ^ fnv({other[0]});
  return {key, other};
}
Pair collide_combined(ReplayKey key) {
  ReplayKey other = key;
  other[0] += 1;
  const auto folded = [](std::uint64_t digest) { return 0x9e3779b97f4a7c15u + (digest << 6) + (digest >> 2); };
  const std::uint64_t a = combined({key[0]}), b = combined({other[0]});
  other[1] = (a ^ (key[1] + folded(a)) ^ b) - folded(b);
  return {key, other};
}
// Of the first lane, words 0 and 4: state = rotate(state + word * P2, 31) * P1.
Pair collide_xxh64(ReplayKey key) {
  constexpr std::uint64_t kP1 = 0x9e3779b185ebca87u, kP2 = 0xc2b2ae3d27d4eb4fu;
  std::uint64_t inverse = kP2;  // of P2 modulo 2^64: each turn doubles the bits that are right
  for (int i = 0; i < 6; ++i) inverse *= 2 - kP2 * inverse;
  ReplayKey other = key;
  other[0] += 1;
  const auto state = [&](std::uint64_t word) { return std::rotl(kP1 + kP2 + word * kP2, 31) * kP1; };
  other[4] = key[4] + (state(key[0]) - state(other[0])) * inverse;
  return {key, other};
}

TEST_F(StepGraphsTest, NoKeyRunsWhatAnotherRecorded) {
  ReplayKey key(12);
  std::mt19937_64 random(2);
  for (std::uint64_t& word : key) word = random();
  const Pair pairs[] = {collide_fnv(key), collide_combined(key), collide_xxh64(key)};
  EXPECT_EQ(fnv(pairs[0].first), fnv(pairs[0].second));
  EXPECT_EQ(combined(pairs[1].first), combined(pairs[1].second));
  EXPECT_EQ(xxh64(pairs[2].first), xxh64(pairs[2].second));
  for (const auto& [first, second] : pairs) {
    ASSERT_NE(first, second);
    StepGraphs graphs;
    for (int turn = 0; turn < 3; ++turn) {
      EXPECT_EQ(launched(graphs, first, 1), 1);
      EXPECT_EQ(launched(graphs, second, 2), 2);
    }
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

// The memory of a recording is taken when it is made: its launches need none.
TEST_F(StepGraphsTest, ARecordingIsUploadedBeforeItIsLaunched) {
  StepGraphs graphs;
  for (int i = 0; i < 2; ++i) EXPECT_EQ(launched(graphs, {7}, 1), 1);
  simt::set_most_uploaded_graphs(0);
  simt::fail_allocation_after(0);
  const std::int64_t before = replays();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(launched(graphs, {7}, 2), 1);
  EXPECT_EQ(replays() - before, 3);
  EXPECT_EQ(simt::runtime_counts().uploaded_graphs, 1);
}

// First the instantiation finds no memory, then the upload.
TEST_F(StepGraphsTest, NoMemoryAtAnyPointOfARecordingIsNoError) {
  for (int k = 0; k < 3; ++k) {
    StepGraphs graphs;
    EXPECT_EQ(launched(graphs, {7}, 1), 1);
    simt::fail_allocation_after(k);
    const std::int64_t before = replays();
    for (int i = 2; i < 5; ++i) EXPECT_EQ(launched(graphs, {7}, i), k < 2 ? i : 2) << k;
    EXPECT_EQ(replays() - before, k < 2 ? 0 : 3) << k;
    simt::fail_allocation_after(-1);
  }
}

TEST_F(StepGraphsTest, TheOldestRecordingsMakePlaceWhereMemoryIsShort) {
  StepGraphs graphs;
  simt::set_most_uploaded_graphs(2);
  const auto replayed = [&](std::uint64_t key) {
    const std::int64_t before = replays();
    EXPECT_EQ(launched(graphs, {key}, static_cast<int>(key)), static_cast<int>(key));
    EXPECT_LE(simt::runtime_counts().uploaded_graphs, 2);
    return replays() > before;
  };
  for (const std::uint64_t key : {1, 2, 3}) {
    EXPECT_FALSE(replayed(key));
    EXPECT_TRUE(replayed(key)) << key;
  }
  EXPECT_TRUE(replayed(2));
  EXPECT_TRUE(replayed(3));
  EXPECT_FALSE(replayed(1));  // it made place for 3: from the beginning
  EXPECT_TRUE(replayed(1));   // in the place of 2
  EXPECT_TRUE(replayed(3));
  simt::set_most_uploaded_graphs(0);  // somebody else takes the memory
  EXPECT_FALSE(replayed(4));
  EXPECT_FALSE(replayed(4));  // not in the place of both
  EXPECT_EQ(simt::runtime_counts().uploaded_graphs, 0);
  simt::set_most_uploaded_graphs(2);
  EXPECT_FALSE(replayed(4)) << "tried again and again";
}

}  // namespace
}  // namespace quire
