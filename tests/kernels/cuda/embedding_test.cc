#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/device_tensor.h"

namespace quire::testing {
namespace {

class CudaEmbedding : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, CudaEmbedding, ::testing::ValuesIn(kActivationTypes), type_name);

TEST_P(CudaEmbedding, IsTheScaledRow) {
  const std::vector<std::int32_t> ids{4, 0, 9, 4, 1};
  for (const DType table_type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int width : {1, 7, 64, 576, 640}) {
      const std::vector<float> values = noises(10 * width, width);
      const DeviceTensor table(table_type, {10, width}, values), tokens({5}, ids);
      for (const float scale : {1.0f, 25.3f}) {
        const std::vector<float> got = in_every_schedule([&] {
          const DeviceTensor out(GetParam(), {5, width});
          cuda::embed({table, tokens, out, scale}, nullptr);
          return out.floats();
        });
        const std::vector<float> kept = rounded(table_type, values);
        std::vector<float> expected;
        for (const std::int32_t id : ids) {
          for (int i = 0; i < width; ++i) expected.push_back(kept[id * width + i] * scale);
        }
        ASSERT_TRUE(same_bits(got, rounded(GetParam(), expected))) << to_string(table_type) << ", width " << width;
      }
    }
  }
}

TEST(CudaGatherRows, CopiesBits) {
  const std::vector<std::int32_t> rows{3, 3, 0, 5};
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int width : {1, 7, 64, 577}) {
      std::vector<float> values = noises(6 * width, width);
      values[3 * width] = NAN;
      const DeviceTensor x(type, {6, width}, values), index({4}, rows), out(type, {4, width});
      cuda::gather_rows({x, index, out}, nullptr);
      const std::vector<std::uint8_t> from = x.bytes(), to = out.bytes();
      const std::size_t row = to.size() / 4;
      for (std::size_t i = 0; i < to.size(); ++i) ASSERT_EQ(to[i], from[rows[i / row] * row + i % row]) << width;
    }
  }
}

TEST(CudaGatherRows, RowsBeyondTwoToThe32Elements) {
  constexpr std::int64_t kStride = (std::int64_t{1} << 31) + 8;
  const simt::DeviceBuffer<std::uint16_t> memory(2 * kStride + 72, simt::DeviceMemory::Fill::kSparse);
  TensorView x(memory.data(), DType::kBF16, {3, 72});
  x.outer_stride = kStride;
  for (int r = 0; r < 3; ++r) {
    for (int i = 0; i < 72; ++i) memory.data()[r * kStride + i] = float_to_bfloat16(noise(r * 100 + i));
  }
  const DeviceTensor index({2}, std::vector<std::int32_t>{2, 1}), out(DType::kBF16, {2, 72}), same(DType::kBF16, {2, 72});
  cuda::gather_rows({x, index, out}, nullptr);
  cuda::embed({x, index, same, 1.0f}, nullptr);
  for (int i = 0; i < 144; ++i) {
    EXPECT_EQ(out.floats()[i], bfloat16_to_float(float_to_bfloat16(noise((2 - i / 72) * 100 + i % 72))));
  }
  EXPECT_EQ(out.bytes(), same.bytes());
}

TEST(CudaEmbeddingArguments, AreRefusedByName) {
  const DeviceTensor table(DType::kBF16, {10, 64}), quantised(DType::kQ8_0, {10, 64}), ids({5}, std::vector<std::int32_t>(5, 0));
  const DeviceTensor long_ids({5}, std::vector<std::int64_t>(5, 0)), out(DType::kBF16, {5, 64}), few(DType::kBF16, {4, 64});
  const DeviceTensor f32(DType::kF32, {5, 64});
  EXPECT_ERROR(cuda::embed({quantised, ids, out}, nullptr), ErrorCode::kInvalidArgument, "embed: table is Q8_0 [10, 64]");
  EXPECT_ERROR(cuda::embed({table, long_ids, out}, nullptr), ErrorCode::kInvalidArgument, "token_ids is I64 [5]");
  EXPECT_ERROR(cuda::embed({table, ids, few}, nullptr), ErrorCode::kInvalidArgument, "out is BF16 [4, 64]");
  EXPECT_ERROR(cuda::embed({table, ids, f32}, nullptr), ErrorCode::kInvalidArgument, "out is F32");
  EXPECT_ERROR(cuda::gather_rows({quantised, ids, out}, nullptr), ErrorCode::kInvalidArgument, "gather_rows: x is Q8_0");
  EXPECT_ERROR(cuda::gather_rows({table, ids, f32}, nullptr), ErrorCode::kInvalidArgument, "out is F32 [5, 64]");
  EXPECT_ERROR(cuda::gather_rows({table, long_ids, out}, nullptr), ErrorCode::kInvalidArgument, "rows is I64 [5]");
}

}  // namespace
}  // namespace quire::testing
