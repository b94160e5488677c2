// Every op beside attention (attention_far_test.cc) on memory that ends beyond 2^32 elements: rows there give the bits of the
// same rows nearby. Buffers are sparse, and of grids too large to be run only the last blocks are. The faults of peers' users:
// offsets in 32 bits.
#include <cstring>
#include <random>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/sample_rows.h"
#include "tests/kernels/cuda/far_rows.h"
#include "tests/kernels/cuda/pool_layer.h"
#include "tests/kernels/weight_formats.h"
#include "tests/support/simt/first_block.h"

namespace quire::testing {
namespace {

DeviceTensor near_rows(DType type, std::int64_t width, unsigned seed) {
  return {type, {3, width}, noises(static_cast<int>(3 * width), seed)};
}

TEST(PeerBugs, B056_B061_RowsFarApart) {
  constexpr int kWidth = 72;
  for (const DType type : kActivationTypes) {
    const DeviceTensor weight(DType::kF32, {kWidth}, noises(kWidth, 9));
    const DeviceTensor x = near_rows(type, kWidth, 1), y = near_rows(type, kWidth, 2), out(type, {3, kWidth});
    const FarRows far_x(x), far_y(y), far_out(out);
    cuda::rms_norm({x, weight, out, 1e-5f}, nullptr);
    cuda::rms_norm({far_x, weight, far_out, 1e-5f}, nullptr);
    EXPECT_TRUE(far_out.equals(out)) << "rms_norm";
    cuda::gated_activation({x, y, out, Activation::kSilu}, nullptr);
    cuda::gated_activation({far_x, far_y, far_out, Activation::kSilu}, nullptr);
    EXPECT_TRUE(far_out.equals(out)) << "gated_activation";
    cuda::add_rms_norm({x, y, weight, out, 1e-5f}, nullptr);
    cuda::add_rms_norm({far_x, far_y, weight, far_out, 1e-5f}, nullptr);
    EXPECT_TRUE(far_out.equals(out) && far_x.equals(x)) << "add_rms_norm";
    cuda::add({x, y}, nullptr);
    cuda::add({far_x, far_y}, nullptr);
    EXPECT_TRUE(far_x.equals(x)) << "add";
  }
  const DeviceTensor logits = near_rows(DType::kF32, kWidth, 3);
  const FarRows far_logits(logits);
  cuda::softcap({logits, 0.5f}, nullptr);
  cuda::softcap({far_logits, 0.5f}, nullptr);
  EXPECT_TRUE(far_logits.equals(logits)) << "softcap";
}

TEST(PeerBugs, B056_B061_HeadsFarApart) {
  constexpr int kSize = 64;
  const DeviceTensor positions({3}, std::vector<std::int32_t>{1, 2, 77}), slots({3}, std::vector<std::int64_t>{5, 0, 3});
  const DeviceTensor frequencies(DType::kF32, {kSize / 2}, noises(kSize / 2, 4)), table(DType::kF32, {3, kSize / 2, 2});
  const FarRows far_table(table);
  cuda::rope_table({positions, frequencies, 1.0f, table}, nullptr);
  cuda::rope_table({positions, frequencies, 1.0f, far_table}, nullptr);
  EXPECT_TRUE(far_table.equals(table)) << "rope_table";
  const DeviceTensor q(DType::kBF16, {3, 4, kSize}, noises(12 * kSize, 1)), k(DType::kBF16, {3, 2, kSize}, noises(6 * kSize, 2)),
      v(DType::kBF16, {3, 2, kSize}, noises(6 * kSize, 3));
  const FarRows far_q(q), far_k(k), far_v(v);
  const PoolLayer pool(DType::kBF16, 2, 4, 2, kSize), far_pool(DType::kBF16, 2, 4, 2, kSize);
  cuda::rope_append_kv({q, k, v, table, slots, pool.layer()}, nullptr);
  cuda::rope_append_kv({far_q, far_k, far_v, far_table, slots, far_pool.layer()}, nullptr);
  EXPECT_TRUE(far_q.equals(q)) << "rope_append_kv";
  EXPECT_EQ(far_pool.bytes(), pool.bytes()) << "rope_append_kv";
  cuda::rope({q, table}, nullptr);
  cuda::rope({far_q, far_table}, nullptr);
  EXPECT_TRUE(far_q.equals(q)) << "rope";
}

TEST(PeerBugs, B058_SlotsFarIntoThePool) {
  constexpr int kSize = 64, kHeads = 2, kBlock = 16;
  constexpr std::int64_t kLayer = std::int64_t{kHeads} * kBlock * kSize, kStride = 2 * kLayer;
  constexpr std::int64_t kBlocks = (std::int64_t{1} << 32) / kStride + 9;
  const simt::DeviceBuffer<std::uint16_t> pool(kBlocks * kStride, simt::DeviceMemory::Fill::kSparse);
  const KvLayer layer{pool.data(), pool.data() + kLayer, DType::kBF16, kStride, kBlock, kHeads, kSize};
  const std::vector<std::int64_t> slots{kBlocks * kBlock - 1, (std::int64_t{1} << 31) / kStride * kBlock + 3, 5};
  const DeviceTensor k(DType::kBF16, {3, kHeads, kSize}, noises(3 * kHeads * kSize, 1)), where({3}, slots);
  const DeviceTensor no_turn(DType::kF32, {3, 1, 2}, {1, 0, 1, 0, 1, 0}), q(DType::kBF16, {3, 1, kSize});
  for (const bool with_rope : {false, true}) {
    for (const std::int64_t slot : slots) {  // of head 0
      std::memset(pool.data() + slot / kBlock * kStride + slot % kBlock * kSize, 0, 2 * kSize);
    }
    if (with_rope) {
      cuda::rope_append_kv({q, k, k, no_turn, where, layer}, nullptr);
    } else {
      cuda::append_kv({k, k, where, layer}, nullptr);
    }
    for (std::int64_t t = 0; t < 3; ++t) {
      for (std::int64_t i = 0; i < kHeads * kSize; ++i) {
        const std::int64_t place = slots[t] / kBlock * kStride + (i / kSize * kBlock + slots[t] % kBlock) * kSize + i % kSize;
        ASSERT_EQ(pool[place], k.view().as<std::uint16_t>()[t * kHeads * kSize + i]) << with_rope;
        ASSERT_EQ(pool[place + kLayer], pool[place]) << with_rope;
      }
    }
  }
}

TEST(PeerBugs, B056_BlocksFarIntoThePool) {
  constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20, kBlocks = (std::int64_t{1} << 13) + 2;  // beyond 2^33 bytes
  const simt::DeviceBuffer<std::uint8_t> pool(kBlocks * kBlockBytes, simt::DeviceMemory::Fill::kSparse);
  std::vector<std::uint8_t> host(2 * kBlockBytes, 0);
  std::memset(pool.data(), 7, kBlockBytes);
  const BlockPair out[] = {{0, kBlocks - 1}}, down[] = {{kBlocks - 1, 1}};
  cuda::copy_blocks({pool.data(), kBlockBytes, out, 1}, nullptr);
  cuda::transfer_blocks({pool.data(), host.data(), kBlockBytes, down, 1}, nullptr);
  EXPECT_EQ(pool[kBlocks * kBlockBytes - 1], 7);
  EXPECT_EQ(pool[(kBlocks - 1) * kBlockBytes - 1], 0);
  EXPECT_EQ(host[kBlockBytes - 1] + host[kBlockBytes] + host[2 * kBlockBytes - 1], 14);
}

TEST(PeerBugs, B056_SamplingManyRows) {
  constexpr std::int64_t kSize = 1024, kRows = (std::int64_t{1} << 32) / kSize + 1;
  const simt::DeviceBuffer<float> logits(kRows * kSize, simt::DeviceMemory::Fill::kSparse),
      scratch(kRows * kSize, simt::DeviceMemory::Fill::kSparse);
  const simt::DeviceBuffer<cuda::DeviceSampleRow> rows(kRows, simt::DeviceMemory::Fill::kSparse);
  const simt::DeviceBuffer<SampleResult> results(kRows, simt::DeviceMemory::Fill::kSparse), near_result(1);
  std::vector<std::byte> packed;
  const SampleRow row{.temperature = 0.8f, .top_p = 0.9f, .seed = 3, .logprob = true, .num_top = 4};
  cuda::pack_sample_rows(&row, 1, kSize, packed);
  const simt::DeviceBuffer<std::byte> near_rows(packed);
  const DeviceTensor near_logits(DType::kF32, {1, kSize}, noises(kSize, 5, 3.0f)), near_scratch(DType::kF32, {1, kSize});
  cuda::sample({near_logits, near_rows.data(), near_scratch.view().as<float>(), near_result.data()}, nullptr);
  std::memcpy(logits.data() + (kRows - 1) * kSize, near_logits.view().data, kSize * sizeof(float));
  std::memcpy(rows.data() + kRows - 1, packed.data(), sizeof(cuda::DeviceSampleRow));
  const simt::FirstBlock first(kRows - 1);
  cuda::sample({TensorView(logits.data(), DType::kF32, {kRows, kSize}), rows.data(), scratch.data(), results.data()}, nullptr);
  EXPECT_TRUE(results[kRows - 1].ok);
  EXPECT_EQ(results[kRows - 1].token, near_result[0].token);
  EXPECT_EQ(results[kRows - 1].logprob, near_result[0].logprob);
  EXPECT_EQ(results[kRows - 1].top_tokens[3], near_result[0].top_tokens[3]);
}

// The last sixteen rows of a matrix of more than 2^33 weights, so that packed ones lie beyond 2^32 bytes.
class FarWeights : public ::testing::TestWithParam<DType> {
 protected:
  static constexpr std::int64_t kInner = 2048, kOuter = (std::int64_t{1} << 33) / kInner + 16;

  FarWeights() {
    std::mt19937 random(5);
    near_ = DeviceTensor(GetParam(), {16, kInner}, test::random_weights(GetParam(), 16 * kInner, random));
    std::memcpy(last(far_), near_.view().data, static_cast<std::size_t>(near_.view().num_bytes()));
  }
  void* last(const simt::DeviceBuffer<std::uint8_t>& matrix) const {
    return matrix.data() + (kOuter - 16) * row_bytes(GetParam(), kInner);
  }
  TensorView view(const simt::DeviceBuffer<std::uint8_t>& matrix) const {
    return TensorView(matrix.data(), GetParam(), {kOuter, kInner});
  }

  DeviceTensor near_{DType::kF32, {1, 1}};
  simt::DeviceBuffer<std::uint8_t> far_{static_cast<std::size_t>(kOuter * row_bytes(GetParam(), kInner)),
                                        simt::DeviceMemory::Fill::kSparse};
};
class FarPackedWeights : public FarWeights {};
INSTANTIATE_TEST_SUITE_P(Types, FarWeights,
                         ::testing::Values(DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0, DType::kQ4_K,
                                           DType::kQ5_K, DType::kQ6_K),
                         type_name);
INSTANTIATE_TEST_SUITE_P(Types, FarPackedWeights, ::testing::Values(DType::kQ4_0, DType::kQ4_1, DType::kQ4_K, DType::kQ8_0),
                         type_name);

TEST_P(FarWeights, B056_DequantiseAndUnpack) {
  const simt::DeviceBuffer<std::uint16_t> far_out(kOuter * kInner, simt::DeviceMemory::Fill::kSparse);
  const TensorView far_view(far_out.data(), DType::kBF16, {kOuter, kInner});
  const DeviceTensor out(DType::kBF16, {16, kInner});
  const std::size_t bytes = static_cast<std::size_t>(out.view().num_bytes());
  cuda::dequantize(near_, out, nullptr);
  constexpr int kThreads = 256;
  {
    const simt::FirstBlock first((kOuter - 16) * (kInner / 8 / kThreads));
    cuda::dequantize(view(far_), far_view, nullptr);
  }
  EXPECT_EQ(std::memcmp(far_view.row(kOuter - 16), out.view().data, bytes), 0);
  if (!cuda::is_packable(near_)) return;
  std::memset(far_view.row(kOuter - 16), 0, bytes);
  const simt::DeviceBuffer<std::uint8_t> far_packed(far_.size(), simt::DeviceMemory::Fill::kSparse);
  const simt::FirstBlock first((kOuter / 16 - 1) * (kInner / 64 * 32 / kThreads));
  cuda::pack_weight(view(far_), view(far_packed), nullptr);
  cuda::unpack_weight(view(far_packed), far_view, nullptr);
  EXPECT_EQ(std::memcmp(far_view.row(kOuter - 16), out.view().data, bytes), 0);
}

TEST_P(FarPackedWeights, B056_Multiply) {
  ASSERT_TRUE(cuda::is_packable(near_));
  const DeviceTensor x = near_rows(DType::kBF16, kInner, 1), packed(GetParam(), {16, kInner}), out(DType::kF32, {3, 16});
  cuda::pack_weight(near_, packed, nullptr);
  cuda::matmul_quantized({.x = x, .num_projections = 1, .projections = {{packed, {}, out}}}, nullptr);
  const FarRows far_x(x);
  const simt::DeviceBuffer<float> far_out(2 * FarRows::kStride + kOuter, simt::DeviceMemory::Fill::kSparse);
  TensorView out_view(far_out.data(), DType::kF32, {3, kOuter});
  out_view.outer_stride = FarRows::kStride;
  std::memcpy(last(far_), packed.view().data, static_cast<std::size_t>(packed.view().num_bytes()));
  const simt::FirstBlock first(kOuter / 16 - 1);
  cuda::matmul_quantized({.x = far_x, .num_projections = 1, .projections = {{view(far_), {}, out_view}}}, nullptr);
  for (int r = 0; r < 3; ++r) {
    for (int m = 0; m < 16; ++m) {
      EXPECT_EQ(out_view.row_as<float>(r)[kOuter - 16 + m], out.view().as<float>()[r * 16 + m]) << r << ", " << m;
    }
  }
}

}  // namespace
}  // namespace quire::testing
