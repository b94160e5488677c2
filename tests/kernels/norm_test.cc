#include "tests/support/cpu_variants.h"
#include "tests/support/reference.h"

namespace quire::testing {
namespace {

TensorView matrix(std::vector<float>& x, std::int64_t rows, std::int64_t width) {
  return TensorView(x.data(), DType::kF32, {rows, width});
}

class NormTest : public CpuKernelTest {
 protected:
  static std::vector<float> rms_norm(const cpu::KernelTable& kernels, std::vector<float> x, std::vector<float> weight,
                                     int threads) {
    const auto width = static_cast<std::int64_t>(weight.size()), rows = static_cast<std::int64_t>(x.size()) / width;
    std::vector<float> out(x.size(), NAN);
    ThreadPool pool(threads);
    kernels.rms_norm({matrix(x, rows, width), TensorView(weight.data(), DType::kF32, {width}), matrix(out, rows, width), 1e-5f},
                     pool);
    return out;
  }
};
QUIRE_INSTANTIATE_VARIANTS(NormTest);

TEST_P(NormTest, EqualsTheOracleAtAnyWidth) {
  for (const int width : {1, 7, 15, 16, 17, 31, 64, 576, 1000, 4096}) {
    const std::vector<float> x = noises(5 * width, width, 3.0f), weight = noises(width, 99);
    const std::vector<float> out = rms_norm(table(), x, weight, 1);
    EXPECT_TRUE(near(out, reference::rms_norm(x, weight, 1e-5), 1e-6, 1e-9)) << width;
    EXPECT_TRUE(same_bits(out, rms_norm(portable(), x, weight, 2))) << width;
  }
}

TEST_P(NormTest, RowsAreIndependentAndInPlaceIsTheSame) {
  constexpr int kWidth = 40, kRows = 900;  // several pieces of work
  std::vector<float> x = noises(kRows * kWidth, 1), weight = noises(kWidth, 2);
  const std::vector<float> all = rms_norm(table(), x, weight, 3);
  for (const int row : {0, 1, 450, kRows - 1}) {
    const std::vector<float> one(x.begin() + row * kWidth, x.begin() + (row + 1) * kWidth);
    EXPECT_TRUE(same_bits(rms_norm(table(), one, weight, 1), {all.begin() + row * kWidth, all.begin() + (row + 1) * kWidth}));
  }
  ThreadPool pool(1);
  const TensorView view = matrix(x, kRows, kWidth);
  table().rms_norm({view, TensorView(weight.data(), DType::kF32, {kWidth}), view, 1e-5f}, pool);
  EXPECT_TRUE(same_bits(x, all));
}

TEST_P(NormTest, ZeroAndNanRows) {
  std::vector<float> x(3 * 20, 0.0f), weight(20, 2.0f);
  x[25] = NAN;
  x[45] = 1e18f;  // its square is finite
  const std::vector<float> out = rms_norm(table(), x, weight, 1);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(out[i], 0.0f);
    EXPECT_TRUE(std::isnan(out[20 + i]));
    EXPECT_TRUE(std::isfinite(out[40 + i]));
  }
}

TEST_P(NormTest, AddRmsNormIsAddThenRmsNorm) {
  for (const int width : {5, 16, 50, 576}) {
    constexpr int kRows = 33;
    std::vector<float> residual = noises(kRows * width, 1), x = noises(kRows * width, 2), weight = noises(width, 3);
    std::vector<float> sums = residual, out(residual.size(), NAN);
    ThreadPool pool(2);
    table().add({matrix(sums, kRows, width), matrix(x, kRows, width)}, pool);
    for (std::size_t i = 0; i < sums.size(); ++i) ASSERT_EQ(sums[i], residual[i] + x[i]);
    table().add_rms_norm({matrix(residual, kRows, width), matrix(x, kRows, width),
                          TensorView(weight.data(), DType::kF32, {width}), matrix(out, kRows, width), 1e-5f},
                         pool);
    EXPECT_TRUE(same_bits(residual, sums));
    EXPECT_TRUE(same_bits(out, rms_norm(table(), sums, weight, 1)));
  }
}

TEST_P(NormTest, StridedRowsLeaveTheGapsAlone) {
  constexpr int kWidth = 19, kStride = 30, kRows = 4;
  std::vector<float> x = noises(kRows * kStride, 1), weight = noises(kWidth, 2), out(kRows * kStride, -7.0f);
  TensorView in = matrix(x, kRows, kWidth), to = matrix(out, kRows, kWidth);
  in.outer_stride = to.outer_stride = kStride;
  ThreadPool pool(1);
  table().rms_norm({in, TensorView(weight.data(), DType::kF32, {kWidth}), to, 1e-5f}, pool);
  for (int row = 0; row < kRows; ++row) {
    const std::vector<float> one(x.begin() + row * kStride, x.begin() + row * kStride + kWidth);
    const auto begin = out.begin() + row * kStride;
    EXPECT_TRUE(same_bits({begin, begin + kWidth}, rms_norm(table(), one, weight, 1)));
    for (int i = kWidth; i < kStride; ++i) EXPECT_EQ(begin[i], -7.0f);
  }
}

}  // namespace
}  // namespace quire::testing
