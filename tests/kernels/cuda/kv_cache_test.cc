#include <limits>

#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/pool_layer.h"

namespace quire::testing {
namespace {

class CudaAppendKv : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, CudaAppendKv, ::testing::ValuesIn(kActivationTypes), type_name);

TEST_P(CudaAppendKv, WritesTheSlotsAndNothingElse) {
  const std::vector<std::int64_t> slots{7, -1, 30, 0, 13, -1};
  for (const DType pool_type : {DType::kF16, DType::kBF16, DType::kF32}) {
    for (const int size : {1, 7, 64, 80}) {
      for (const int block_size : {1, 5, 16}) {
        const int row = 2 * size;
        const std::vector<float> k = noises(6 * row, 1), v = noises(6 * row, 2);
        const DeviceTensor keys(GetParam(), {6, 2, size}, k), values(GetParam(), {6, 2, size}, v), where({6}, slots);
        const std::vector<float> got = in_every_schedule([&] {
          PoolLayer pool(pool_type, 32 / block_size + 1, block_size, 2, size);
          cuda::append_kv({keys, values, where, pool.layer()}, nullptr);
          return pool.floats();
        });
        const PoolLayer pool(pool_type, 32 / block_size + 1, block_size, 2, size);
        ASSERT_TRUE(same_bits(got, pool.expected(rounded(GetParam(), k), rounded(GetParam(), v), slots)))
            << to_string(pool_type) << ", head size " << size << ", block size " << block_size;
      }
    }
  }
}

TEST(PeerBugs, B070_B083_PaddingRowsWriteNothing) {  // any negative slot; what lies beyond the pool is the caller's fault
  const std::vector<std::int64_t> slots{5, -1, std::numeric_limits<std::int64_t>::min(), 0, -(std::int64_t{1} << 32) + 2, 31};
  const std::vector<float> k = noises(6 * 2 * 16, 1), v = noises(6 * 2 * 16, 2);
  const DeviceTensor keys(DType::kBF16, {6, 2, 16}, k), values(DType::kBF16, {6, 2, 16}, v), where({6}, slots);
  const DeviceTensor q(DType::kBF16, {6, 1, 16}), no_turn(DType::kF32, {6, 1, 2}, {1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0});
  const PoolLayer pool(DType::kBF16, 4, 8, 2, 16), rotated(DType::kBF16, 4, 8, 2, 16);
  cuda::append_kv({keys, values, where, pool.layer()}, nullptr);
  cuda::rope_append_kv({q, keys, values, no_turn, where, rotated.layer()}, nullptr);
  const std::vector<float> expected = pool.expected(keys.floats(), values.floats(), slots);
  EXPECT_TRUE(same_bits(pool.floats(), expected));
  EXPECT_TRUE(same_bits(rotated.floats(), expected));
}

TEST(CudaCopyBlocks, OnePairAfterTheOther) {
  std::vector<std::uint8_t> bytes(5 * 24);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i);
  const simt::DeviceBuffer<std::uint8_t> pool(bytes);
  const BlockPair pairs[] = {{0, 3}, {3, 1}, {2, 2}, {4, 0}};  // 1 gets what 3 has got
  cuda::copy_blocks({pool.data(), 24, pairs, 4}, nullptr);
  const int from[] = {4, 0, 2, 0, 4};
  for (int i = 0; i < 5 * 24; ++i) ASSERT_EQ(pool[i], from[i / 24] * 24 + i % 24);
}

TEST(CudaTransferBlocks, ToTheHostAndBack) {
  std::vector<std::uint8_t> host(4 * 40, 0), bytes(3 * 40);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i + 1);
  const simt::DeviceBuffer<std::uint8_t> pool(bytes), other(std::vector<std::uint8_t>(3 * 40, 0));
  const BlockPair down[] = {{2, 0}, {0, 3}}, up[] = {{3, 1}};
  cuda::transfer_blocks({pool.data(), host.data(), 40, down, 2}, nullptr);
  cuda::transfer_blocks({host.data(), other.data(), 40, up, 1}, nullptr);
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(host[i], bytes[80 + i]);
    EXPECT_EQ(host[40 + i], 0);
    EXPECT_EQ(other[40 + i], bytes[i]);
    EXPECT_EQ(other[i] + other[80 + i], 0);
  }
}

TEST(CudaKvArguments, AreRefusedByName) {
  PoolLayer pool(DType::kBF16, 2, 4, 2, 64);
  const DeviceTensor k(DType::kBF16, {3, 2, 64}), v(DType::kF16, {3, 2, 64}), few(DType::kBF16, {2, 2, 64});
  const DeviceTensor slots({3}, std::vector<std::int64_t>(3, 0)), short_slots({3}, std::vector<std::int32_t>(3, 0));
  KvLayer wrong = pool.layer();
  EXPECT_ERROR(cuda::append_kv({k, v, slots, wrong}, nullptr), ErrorCode::kInvalidArgument, "append_kv: v is F16 [3, 2, 64]");
  EXPECT_ERROR(cuda::append_kv({few, few, slots, wrong}, nullptr), ErrorCode::kInvalidArgument, "slots is I64 [3]");
  EXPECT_ERROR(cuda::append_kv({k, k, short_slots, wrong}, nullptr), ErrorCode::kInvalidArgument, "slots is I32 [3]");
  wrong.head_size = 32;
  EXPECT_ERROR(cuda::append_kv({k, k, slots, wrong}, nullptr), ErrorCode::kInvalidArgument, "k is BF16 [3, 2, 64]");
  wrong = pool.layer();
  wrong.block_stride = 2 * 4 * 64 - 1;
  EXPECT_ERROR(cuda::append_kv({k, k, slots, wrong}, nullptr), ErrorCode::kUnsupported, "kv.block_stride is 511");
  wrong = pool.layer();
  wrong.block_size = 0;
  EXPECT_ERROR(cuda::append_kv({k, k, slots, wrong}, nullptr), ErrorCode::kUnsupported, "kv.block_size is 0");
  wrong = pool.layer();
  wrong.dtype = DType::kU8;
  EXPECT_ERROR(cuda::append_kv({k, k, slots, wrong}, nullptr), ErrorCode::kInvalidArgument, "kv is U8");
  const BlockPair bad{-1, 0};
  EXPECT_ERROR(cuda::copy_blocks({pool.layer().keys, 8, &bad, 1}, nullptr), ErrorCode::kUnsupported, "pairs.from is -1");
}

}  // namespace
}  // namespace quire::testing
