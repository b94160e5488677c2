#include <random>

#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/pool_layer.h"
#include "tests/support/reference.h"

namespace quire::testing {
namespace {

std::vector<float> frequencies(int pairs) {
  std::vector<float> inv_freq;
  for (int i = 0; i < pairs; ++i) inv_freq.push_back(std::pow(10000.0f, -static_cast<float>(i) / static_cast<float>(pairs)));
  return inv_freq;
}

struct HeadShape {
  int size, rot;
};
const HeadShape kShapes[] = {{64, 64}, {80, 80}, {128, 128}, {64, 32}, {10, 6}, {7, 4}, {2, 2}, {96, 24}, {35, 18}};

// The table of `positions`, computed by the kernel.
DeviceTensor table(const std::vector<std::int32_t>& positions, const std::vector<float>& inv_freq, float magnitude) {
  const auto tokens = static_cast<std::int64_t>(positions.size()), pairs = static_cast<std::int64_t>(inv_freq.size());
  DeviceTensor cos_sin(DType::kF32, {tokens, pairs, 2});
  cuda::rope_table({DeviceTensor({tokens}, positions), DeviceTensor(DType::kF32, {pairs}, inv_freq), magnitude, cos_sin},
                   nullptr);
  return cos_sin;
}

TEST(CudaRopeTable, IsExactAtLargePositions) {
  const std::vector<std::int32_t> positions{0, 1, 1000, 131071, 2000000};
  for (const int pairs : {1, 5, 64, 300}) {
    const std::vector<float> inv_freq = frequencies(pairs);
    const std::vector<float> got = table(positions, inv_freq, 1.25f).floats();
    std::vector<double> expected;
    for (const std::int32_t position : positions) {
      for (const float frequency : inv_freq) {
        expected.push_back(std::cos(double{frequency} * position) * 1.25);
        expected.push_back(std::sin(double{frequency} * position) * 1.25);
      }
    }
    EXPECT_TRUE(near(got, expected, 6e-8, 1e-12)) << pairs;
  }
}

class CudaRope : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, CudaRope, ::testing::ValuesIn(kActivationTypes), type_name);

TEST_P(CudaRope, EqualsTheOracle) {
  const std::vector<std::int32_t> positions{0, 3, 500, 77777};
  for (const HeadShape& shape : kShapes) {
    const std::vector<float> inv_freq = frequencies(shape.rot / 2), x = rounded(GetParam(), noises(4 * 3 * shape.size, 5));
    for (const RopeKind kind : {RopeKind::kHalfSplit, RopeKind::kInterleaved}) {
      const std::vector<float> got = in_every_schedule([&] {
        const DeviceTensor heads(GetParam(), {4, 3, shape.size}, x);
        cuda::rope({heads, table(positions, inv_freq, 1.1f), kind}, nullptr);
        return heads.floats();
      });
      const std::vector<double> expected = reference::rope(x, positions, inv_freq, 3, shape.size, double{1.1f}, kind);
      EXPECT_TRUE(near(got, expected, 1.01 * rounding(GetParam()), 1e-6)) << shape.size << ", rot " << shape.rot;
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (static_cast<int>(i) % shape.size >= shape.rot) {
          ASSERT_EQ(got[i], x[i]);
        }
      }
    }
  }
}

TEST_P(CudaRope, ATokensBitsAreItsOwnAndStridesDoNotMatter) {
  constexpr int kSize = 64, kHeads = 5, kTokens = 9, kRow = kHeads * kSize + 3;  // rows at odd addresses
  const std::vector<float> inv_freq = frequencies(kSize / 2), x = noises(kTokens * kHeads * kSize, 5);
  std::vector<std::int32_t> positions;
  for (int t = 0; t < kTokens; ++t) positions.push_back(17 * t);
  const DeviceTensor dense(GetParam(), {kTokens, kHeads, kSize}, x), wide(GetParam(), {kTokens, kRow});
  const DeviceTensor cos_sin = table(positions, inv_freq, 1.0f);
  TensorView apart = dense;
  apart.data = wide.view().data;
  apart.outer_stride = kRow;
  for (int t = 0; t < kTokens; ++t) std::memcpy(apart.row(t), dense.view().row(t), kHeads * kSize * 2);
  cuda::rope({dense, cos_sin, RopeKind::kHalfSplit}, nullptr);
  cuda::rope({apart, cos_sin, RopeKind::kHalfSplit}, nullptr);
  for (int t = 0; t < kTokens; ++t) {
    EXPECT_EQ(std::memcmp(apart.row(t), dense.view().row(t), kHeads * kSize * 2), 0) << t;
    const std::vector<float> token(x.begin() + t * kHeads * kSize, x.begin() + (t + 1) * kHeads * kSize);
    const DeviceTensor one(GetParam(), {1, kHeads, kSize}, token);
    cuda::rope({one, cos_sin.view().rows(t, 1), RopeKind::kHalfSplit}, nullptr);
    EXPECT_EQ(std::memcmp(one.view().data, dense.view().row(t), kHeads * kSize * 2), 0) << t;
  }
}

TEST_P(CudaRope, RopeAppendIsItsParts) {
  const std::vector<std::int64_t> slots{11, -1, 2, 8, 0};
  const std::vector<std::int32_t> positions{5, 6, 0, 900, 40000};
  for (const HeadShape& shape : kShapes) {
    for (const DType pool_type : {DType::kF16, DType::kBF16, DType::kF32}) {
      for (const RopeKind kind : {RopeKind::kHalfSplit, RopeKind::kInterleaved}) {
        const std::vector<float> q = noises(5 * 4 * shape.size, 1), k = noises(5 * 2 * shape.size, 2),
                                 v = noises(5 * 2 * shape.size, 3);
        const DeviceTensor cos_sin = table(positions, frequencies(shape.rot / 2), 1.0f), where({5}, slots);
        const DeviceTensor values(GetParam(), {5, 2, shape.size}, v), fused_k(GetParam(), {5, 2, shape.size}, k);
        const DeviceTensor part_q(GetParam(), {5, 4, shape.size}, q), part_k(GetParam(), {5, 2, shape.size}, k);
        PoolLayer parts(pool_type, 3, 4, 2, shape.size), together(pool_type, 3, 4, 2, shape.size);
        cuda::rope({part_q, cos_sin, kind}, nullptr);
        cuda::rope({part_k, cos_sin, kind}, nullptr);
        cuda::append_kv({part_k, values, where, parts.layer()}, nullptr);
        const DeviceTensor fused_q(GetParam(), {5, 4, shape.size}, q);
        cuda::rope_append_kv({fused_q, fused_k, values, cos_sin, where, together.layer(), kind}, nullptr);
        EXPECT_EQ(fused_q.bytes(), part_q.bytes()) << shape.size << ", rot " << shape.rot;
        EXPECT_EQ(together.bytes(), parts.bytes()) << shape.size << ", rot " << shape.rot << ", " << to_string(pool_type);
        EXPECT_TRUE(same_bits(together.floats(), together.expected(part_k.floats(), values.floats(), slots)));
        EXPECT_TRUE(same_bits(fused_k.floats(), rounded(GetParam(), k)));
      }
    }
  }
}

// A token's pieces, four a head, fill a block of 256 threads, or need two.
TEST_P(CudaRope, ManyHeads) {
  constexpr int kSize = 64, kKvHeads = 8;
  const std::vector<std::int32_t> positions{5, 900};
  const std::vector<std::int64_t> slots{3, 0};
  const std::vector<float> inv_freq = frequencies(kSize / 2);
  const DeviceTensor cos_sin = table(positions, inv_freq, 1.0f), where({2}, slots);
  for (const int heads : {48, 56, 64, 72}) {
    const std::vector<float> q = rounded(GetParam(), noises(2 * heads * kSize, 1)),
                             k = rounded(GetParam(), noises(2 * kKvHeads * kSize, 2)),
                             v = rounded(GetParam(), noises(2 * kKvHeads * kSize, 3));
    const DeviceTensor alone(GetParam(), {2, heads, kSize}, q), fused(GetParam(), {2, heads, kSize}, q),
        keys(GetParam(), {2, kKvHeads, kSize}, k), values(GetParam(), {2, kKvHeads, kSize}, v);
    const PoolLayer pool(GetParam(), 2, 4, kKvHeads, kSize);
    cuda::rope({alone, cos_sin, RopeKind::kHalfSplit}, nullptr);
    cuda::rope_append_kv({fused, keys, values, cos_sin, where, pool.layer(), RopeKind::kHalfSplit}, nullptr);
    const std::vector<double> expected = reference::rope(q, positions, inv_freq, heads, kSize, 1.0, RopeKind::kHalfSplit);
    EXPECT_TRUE(near(alone.floats(), expected, 1.01 * rounding(GetParam()), 1e-6)) << heads;
    EXPECT_EQ(fused.bytes(), alone.bytes()) << heads;
    const DeviceTensor turned(GetParam(), {2, kKvHeads, kSize}, k);
    cuda::rope({turned, cos_sin, RopeKind::kHalfSplit}, nullptr);
    EXPECT_TRUE(same_bits(pool.floats(), pool.expected(turned.floats(), v, slots))) << heads;
  }
}

// Halves of aligned heads are aligned too, so sectors are written whole. A warp has the heads of q, of k or of v; those of v are
// written in two requests, each to the halves of the same sectors.
TEST_P(CudaRope, HalvesOfAlignedHeadsMoveByVectors) {
  if (!simt::has_statistics()) GTEST_SKIP() << "nothing is counted here";
  constexpr int kSize = 64, kHeads = 8, kTokens = 2, kBytes = kTokens * kHeads * kSize * 2;
  const DeviceTensor cos_sin = table({5, 900}, frequencies(kSize / 2), 1.0f), where({kTokens}, std::vector<std::int64_t>{3, 0});
  const std::vector<float> x = noises(kTokens * kHeads * kSize, 1);
  const DeviceTensor q(GetParam(), {kTokens, kHeads, kSize}, x), k(GetParam(), {kTokens, kHeads, kSize}, x),
      v(GetParam(), {kTokens, kHeads, kSize}, x);
  const PoolLayer pool(GetParam(), 2, 4, kHeads, kSize);
  const simt::ScopedOptions scope({.count_traffic = true});
  simt::take_statistics();
  cuda::rope({q, cos_sin, RopeKind::kHalfSplit}, nullptr);
  const simt::GlobalTraffic rotated = simt::take_statistics().global_stores;
  EXPECT_EQ(rotated.num_bytes, kBytes);
  EXPECT_EQ(rotated.num_sectors * 32, kBytes);
  cuda::rope_append_kv({q, k, v, cos_sin, where, pool.layer(), RopeKind::kHalfSplit}, nullptr);
  const simt::GlobalTraffic appended = simt::take_statistics().global_stores;
  EXPECT_EQ(appended.num_bytes, 3 * kBytes);
  EXPECT_EQ(appended.num_sectors * 32, (1 + 1 + 2) * kBytes);
}

TEST(PeerBugs, B062_B064_B065_AnyHeadsAndBlockSizes) {
  constexpr int kSize = 24, kTokens = 3;
  const std::vector<std::int64_t> slots{17, 0, 255};
  const DeviceTensor cos_sin = table({5, 0, 900}, frequencies(kSize / 2), 1.0f), where({kTokens}, slots);
  constexpr std::pair<int, int> kHeads[] = {{1, 1}, {9, 3}, {14, 2}, {5, 1}, {6, 2}, {7, 1}, {16, 1}};
  for (const auto& [heads, kv_heads] : kHeads) {
    for (const int block_size : {1, 3, 8, 96, 128, 256}) {
      const DeviceTensor q(DType::kBF16, {kTokens, heads, kSize}, noises(kTokens * heads * kSize, 1)),
          part_q(DType::kBF16, {kTokens, heads, kSize}, noises(kTokens * heads * kSize, 1)),
          k(DType::kBF16, {kTokens, kv_heads, kSize}, noises(kTokens * kv_heads * kSize, 2)),
          part_k(DType::kBF16, {kTokens, kv_heads, kSize}, noises(kTokens * kv_heads * kSize, 2)),
          v(DType::kBF16, {kTokens, kv_heads, kSize}, noises(kTokens * kv_heads * kSize, 3));
      const PoolLayer pool(DType::kBF16, 256 / block_size + 1, block_size, kv_heads, kSize);
      cuda::rope({part_q, cos_sin, RopeKind::kHalfSplit}, nullptr);
      cuda::rope({part_k, cos_sin, RopeKind::kHalfSplit}, nullptr);
      cuda::rope_append_kv({q, k, v, cos_sin, where, pool.layer(), RopeKind::kHalfSplit}, nullptr);
      EXPECT_EQ(q.bytes(), part_q.bytes()) << heads << ", " << kv_heads;
      EXPECT_TRUE(same_bits(pool.floats(), pool.expected(part_k.floats(), v.floats(), slots))) << kv_heads << ", " << block_size;
    }
  }
}

TEST(CudaRopeArguments, AreRefusedByName) {
  const DeviceTensor x(DType::kBF16, {3, 2, 64}), f32(DType::kF32, {3, 2, 64}), half(DType::kF16, {3, 4, 64});
  const DeviceTensor cos_sin(DType::kF32, {3, 32, 2}), few(DType::kF32, {2, 32, 2}), wide(DType::kF32, {3, 33, 2});
  const DeviceTensor positions({3}, std::vector<std::int32_t>(3, 0)), slots({3}, std::vector<std::int64_t>(3, 0));
  const DeviceTensor inv_freq(DType::kF32, {31});
  PoolLayer pool(DType::kBF16, 2, 4, 2, 64);
  EXPECT_ERROR(cuda::rope({f32, cos_sin}, nullptr), ErrorCode::kInvalidArgument, "rope: x is F32 [3, 2, 64]");
  EXPECT_ERROR(cuda::rope({x, few}, nullptr), ErrorCode::kInvalidArgument, "cos_sin is F32 [2, 32, 2]");
  EXPECT_ERROR(cuda::rope({x, wide}, nullptr), ErrorCode::kUnsupported, "rot is 66");
  EXPECT_ERROR(cuda::rope_table({positions, inv_freq, 1.0f, cos_sin}, nullptr), ErrorCode::kInvalidArgument,
               "rope_table: cos_sin is F32 [3, 32, 2]");
  EXPECT_ERROR(cuda::rope_append_kv({half, x, x, cos_sin, slots, pool.layer()}, nullptr), ErrorCode::kInvalidArgument,
               "rope_append_kv: q is F16 [3, 4, 64]");
}

}  // namespace
}  // namespace quire::testing
