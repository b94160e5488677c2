#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/device_tensor.h"
#include "tests/support/reference.h"

namespace quire::testing {
namespace {

using cuda::add_rms_norm;
using cuda::rms_norm;

class CudaNorm : public ::testing::TestWithParam<DType> {
 protected:
  std::vector<float> norm(const std::vector<float>& x, const std::vector<float>& weight) const {
    const auto width = static_cast<std::int64_t>(weight.size()), rows = static_cast<std::int64_t>(x.size()) / width;
    const DeviceTensor in(GetParam(), {rows, width}, x), scale(DType::kF32, {width}, weight), out(GetParam(), {rows, width});
    rms_norm({in, scale, out, 1e-5f}, nullptr);
    return out.floats();
  }
};
INSTANTIATE_TEST_SUITE_P(Types, CudaNorm, ::testing::ValuesIn(kActivationTypes), type_name);

TEST_P(CudaNorm, EqualsTheOracleAtAnyWidth) {
  for (const int width : {1, 7, 8, 16, 31, 64, 80, 128, 200, 256, 257, 576, 640, 1000, 4096, 8200, 20000, 32768}) {
    const std::vector<float> x = rounded(GetParam(), noises(3 * width, width, 3.0f)), weight = noises(width, 99);
    const std::vector<float> out = norm(x, weight);
    EXPECT_TRUE(near(out, reference::rms_norm(x, weight, 1e-5), 1.02 * rounding(GetParam()), 1e-7)) << width;
  }
}

TEST_P(CudaNorm, SchedulesGiveTheSameBits) {
  for (const int width : {40, 128, 600}) {
    const std::vector<float> x = noises(5 * width, 1), weight = noises(width, 2);
    in_every_schedule([&] { return norm(x, weight); });
  }
}

TEST_P(CudaNorm, ARowsBitsAreItsOwn) {
  for (const int width : {7, 64, 96, 576, 640, 2048}) {
    const std::vector<float> x = noises(9 * width, 1), weight = noises(width, 2);
    const std::vector<float> all = norm(x, weight);
    for (int rows = 1; rows <= 9; ++rows) {  // the last `rows` rows alone
      const std::vector<float> some(x.end() - rows * width, x.end());
      EXPECT_TRUE(same_bits(norm(some, weight), {all.end() - rows * width, all.end()})) << rows << " rows of " << width;
    }
    for (int r = 0; r < 9; ++r) {  // a sum in another order shows in few of the rounded results: all are compared
      const std::vector<float> one(x.begin() + r * width, x.begin() + (r + 1) * width);
      EXPECT_TRUE(same_bits(norm(one, weight), {all.begin() + r * width, all.begin() + (r + 1) * width})) << r << " of " << width;
    }
  }
}

TEST_P(CudaNorm, UnalignedRowsHaveTheSameBitsAndGapsStay) {
  constexpr int kWidth = 576, kStride = 577, kRows = 3;
  const std::vector<float> x = noises(kRows * kWidth, 1), weight = noises(kWidth, 2);
  const DeviceTensor in(GetParam(), {kRows, kStride}, std::vector<float>(kRows * kStride, 3.0f));
  const DeviceTensor out(GetParam(), {kRows, kStride}, std::vector<float>(kRows * kStride, -7.0f));
  TensorView from = in, to = out;
  from.shape[1] = to.shape[1] = kWidth;
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kWidth; ++i) {
      const float value = x[r * kWidth + i];
      from.row_as<std::uint16_t>(r)[i] = GetParam() == DType::kF16 ? float_to_half(value) : float_to_bfloat16(value);
    }
  }
  const DeviceTensor scale(DType::kF32, {kWidth}, weight);
  rms_norm({from, scale, to, 1e-5f}, nullptr);
  const std::vector<float> expected = norm(x, weight), got = out.floats();
  for (int r = 0; r < kRows; ++r) {
    const auto begin = got.begin() + r * kStride;
    EXPECT_TRUE(same_bits({begin, begin + kWidth}, {expected.begin() + r * kWidth, expected.begin() + (r + 1) * kWidth}));
    EXPECT_EQ(begin[kWidth], -7.0f);
  }
}

TEST_P(CudaNorm, InPlaceOverHeads) {  // of q: [T * Hq, D]
  constexpr int kRows = 7 * 9, kSize = 80;
  const std::vector<float> x = noises(kRows * kSize, 1), weight = noises(kSize, 2);
  const DeviceTensor heads(GetParam(), {kRows, kSize}, x), scale(DType::kF32, {kSize}, weight);
  rms_norm({heads, scale, heads, 1e-5f}, nullptr);
  EXPECT_TRUE(same_bits(heads.floats(), norm(x, weight)));
}

TEST_P(CudaNorm, AddRmsNormIsAddThenRmsNorm) {
  for (const int width : {7, 50, 576, 2056}) {
    constexpr int kRows = 5;
    const std::vector<float> residual = noises(kRows * width, 1), x = noises(kRows * width, 2), weight = noises(width, 3);
    const DeviceTensor scale(DType::kF32, {width}, weight), addend(GetParam(), {kRows, width}, x);
    const DeviceTensor sums(GetParam(), {kRows, width}, residual), fused(GetParam(), {kRows, width}, residual);
    const DeviceTensor out(GetParam(), {kRows, width});
    cuda::add({sums, addend}, nullptr);
    add_rms_norm({fused, addend, scale, out, 1e-5f}, nullptr);
    EXPECT_TRUE(same_bits(fused.floats(), sums.floats()));
    EXPECT_TRUE(same_bits(out.floats(), norm(sums.floats(), weight))) << width;
    std::vector<float> expected = rounded(GetParam(), residual);
    const std::vector<float> added = rounded(GetParam(), x);
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += added[i];
    EXPECT_TRUE(same_bits(sums.floats(), rounded(GetParam(), expected)));
  }
}

TEST_P(CudaNorm, MovesEveryByteOnceInWholeSectors) {
  if (!simt::has_statistics()) GTEST_SKIP() << "nothing is counted here";
  simt::Options counting = simt::options();
  counting.count_traffic = true;
  const simt::ScopedOptions scope(counting);
  constexpr std::int64_t kRows = 2, kWidth = 8192, kRowBytes = 2 * kWidth;
  const DeviceTensor residual(GetParam(), {kRows, kWidth}, noises(kRows * kWidth, 1)),
      x(GetParam(), {kRows, kWidth}, noises(kRows * kWidth, 2));
  const DeviceTensor weight(DType::kF32, {kWidth}, noises(kWidth, 3)), out(GetParam(), {kRows, kWidth});
  (void)simt::take_statistics();
  add_rms_norm({residual, x, weight, out, 1e-5f}, nullptr);
  const simt::Statistics seen = simt::take_statistics();
  EXPECT_EQ(seen.global_loads.num_bytes, kRows * (2 * kRowBytes + 4 * kWidth));
  EXPECT_EQ(seen.global_stores.num_bytes, kRows * 2 * kRowBytes);
  EXPECT_EQ(seen.global_stores.num_sectors * 32, seen.global_stores.num_bytes);
  // The weights, F32, are read by two requests for the halves of the same sectors.
  EXPECT_EQ(seen.global_loads.num_sectors * 32, kRows * (2 * kRowBytes + 2 * 4 * kWidth));
}

// What lies beyond a row that ends within a chunk is zero, not the least number above it (of bits 1, in F16 2^-24).
TEST(CudaNormTails, CountNothing) {
  for (const int width : {9, 10, 13}) {
    const std::vector<float> least(width, 0x1p-24f), ones(width, 1.0f);
    const DeviceTensor x(DType::kF16, {1, width}, least), weight(DType::kF32, {width}, ones), out(DType::kF16, {1, width});
    rms_norm({x, weight, out, 0.0f}, nullptr);
    EXPECT_TRUE(same_bits(out.floats(), ones)) << width;
  }
}

TEST_P(CudaNorm, ZeroAndNanRows) {
  std::vector<float> x(2 * 20, 0.0f);
  x[25] = NAN;
  const std::vector<float> out = norm(x, std::vector<float>(20, 2.0f));
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(out[i], 0.0f);
    EXPECT_TRUE(std::isnan(out[20 + i]));
  }
}

TEST(CudaNormArguments, AreRefusedByName) {
  const DeviceTensor x(DType::kBF16, {4, 64}), other(DType::kF16, {4, 64}), wide(DType::kBF16, {4, 65}),
      f32(DType::kF32, {4, 64});
  const DeviceTensor weight(DType::kF32, {64}), short_weight(DType::kF32, {63}), half_weight(DType::kF16, {64});
  EXPECT_ERROR(rms_norm({f32, weight, f32}, nullptr), ErrorCode::kInvalidArgument, "rms_norm: x is F32 [4, 64], must be");
  EXPECT_ERROR(rms_norm({x, short_weight, x}, nullptr), ErrorCode::kInvalidArgument, "weight is F32 [63]");
  EXPECT_ERROR(rms_norm({x, half_weight, x}, nullptr), ErrorCode::kInvalidArgument, "weight is F16 [64]");
  EXPECT_ERROR(rms_norm({x, weight, other}, nullptr), ErrorCode::kInvalidArgument, "out is F16");
  EXPECT_ERROR(rms_norm({x, weight, wide}, nullptr), ErrorCode::kInvalidArgument, "out is BF16 [4, 65]");
  EXPECT_ERROR(add_rms_norm({x, other, weight, x}, nullptr), ErrorCode::kInvalidArgument, "add_rms_norm: x is F16");
  TensorView huge(x.view().data, DType::kBF16, {1, 32769});
  EXPECT_ERROR(rms_norm({huge, weight, huge}, nullptr), ErrorCode::kUnsupported, "H is 32769");
  TensorView overlapping = x;
  overlapping.outer_stride = 63;
  EXPECT_ERROR(rms_norm({overlapping, weight, x}, nullptr), ErrorCode::kInvalidArgument, "x is BF16");
  rms_norm({x.view().rows(0, 0), weight, x.view().rows(0, 0)}, nullptr);  // nothing to do
}

}  // namespace
}  // namespace quire::testing
