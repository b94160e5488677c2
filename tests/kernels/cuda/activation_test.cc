#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/device_tensor.h"
#include "tests/support/reference.h"

namespace quire::testing {
namespace {

class CudaActivation : public ::testing::TestWithParam<DType> {
 protected:
  std::vector<float> gated(Activation activation, std::int64_t rows, const std::vector<float>& gate,
                           const std::vector<float>& up) const {
    const auto width = static_cast<std::int64_t>(gate.size()) / rows;
    const DeviceTensor a(GetParam(), {rows, width}, gate), b(GetParam(), {rows, width}, up), out(GetParam(), {rows, width});
    cuda::gated_activation({a, b, out, activation}, nullptr);
    return out.floats();
  }
};
INSTANTIATE_TEST_SUITE_P(Types, CudaActivation, ::testing::ValuesIn(kActivationTypes), type_name);

TEST_P(CudaActivation, EqualsTheOracleAtAnyWidth) {
  for (const int width : {1, 7, 8, 576, 640, 2048, 2049, 2100}) {
    const std::vector<float> gate = rounded(GetParam(), noises(2 * width, 1, 4.0f)),
                             up = rounded(GetParam(), noises(2 * width, 2));
    for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
      std::vector<double> expected;
      for (std::size_t i = 0; i < gate.size(); ++i) {
        const double x = gate[i];
        expected.push_back((activation == Activation::kSilu ? reference::silu(x) : reference::gelu_tanh(x)) * up[i]);
      }
      EXPECT_TRUE(near(gated(activation, 2, gate, up), expected, 1.01 * rounding(GetParam()), 2e-6)) << width;
    }
  }
}

TEST_P(CudaActivation, LargeValuesSaturate) {
  const std::vector<float> gate{-1e4f, -60.0f, -0.0f, 60.0f, 1e4f, NAN, INFINITY}, ones(7, 1.0f);
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    const std::vector<float> out = gated(activation, 1, gate, ones), kept = rounded(GetParam(), gate);
    for (const int i : {0, 1, 2}) EXPECT_NEAR(out[i], 0.0f, 1e-20f);
    for (const int i : {3, 4, 5, 6}) EXPECT_TRUE(same_bits(out[i], kept[i]));
  }
}

TEST_P(CudaActivation, RowsSchedulesAndPlacesDoNotMatter) {
  constexpr int kWidth = 40;
  const std::vector<float> gate = noises(9 * kWidth, 1), up = noises(9 * kWidth, 2);
  const std::vector<float> all = in_every_schedule([&] { return gated(Activation::kSilu, 9, gate, up); });
  for (int r = 0; r < 9; ++r) {
    const auto row = [&](const std::vector<float>& x) {
      return std::vector<float>(x.begin() + r * kWidth, x.begin() + (r + 1) * kWidth);
    };
    EXPECT_TRUE(same_bits(gated(Activation::kSilu, 1, row(gate), row(up)), row(all)));
  }
  // As in the model: gate and up are halves of one matrix, and the result lies where the gate lay.
  std::vector<float> both;
  for (int r = 0; r < 9; ++r) {
    both.insert(both.end(), gate.begin() + r * kWidth, gate.begin() + (r + 1) * kWidth);
    both.insert(both.end(), up.begin() + r * kWidth, up.begin() + (r + 1) * kWidth);
  }
  const DeviceTensor fused(GetParam(), {9, 2 * kWidth}, both);
  TensorView left = fused, right = fused;
  left.shape[1] = right.shape[1] = kWidth;
  right.data = fused.view().as<std::uint16_t>() + kWidth;
  cuda::gated_activation({left, right, left, Activation::kSilu}, nullptr);
  const std::vector<float> after = fused.floats(), kept = rounded(GetParam(), both);
  for (std::size_t i = 0; i < after.size(); ++i) {
    const std::size_t r = i / (2 * kWidth), k = i % (2 * kWidth);
    EXPECT_EQ(after[i], k < kWidth ? all[r * kWidth + k] : kept[i]);
  }
}

TEST(CudaSoftcap, EqualsTheOracle) {
  for (const int width : {1, 7, 1000}) {
    std::vector<float> x = noises(3 * width, 1, 50.0f);
    const std::vector<float> capped = in_every_schedule([&] {
      const DeviceTensor logits(DType::kF32, {3, width}, x);
      cuda::softcap({logits, 30.0f}, nullptr);
      return logits.floats();
    });
    std::vector<double> expected;
    for (const float v : x) expected.push_back(30.0 * std::tanh(double{v} / 30.0));
    EXPECT_TRUE(near(capped, expected, 1e-6, 1e-9));
  }
}

TEST(CudaActivationArguments, AreRefusedByName) {
  const DeviceTensor x(DType::kBF16, {4, 64}), half(DType::kF16, {4, 64}), f32(DType::kF32, {4, 64}), few(DType::kBF16, {3, 64});
  EXPECT_ERROR(cuda::gated_activation({f32, x, x}, nullptr), ErrorCode::kInvalidArgument,
               "gated_activation: gate is F32 [4, 64]");
  EXPECT_ERROR(cuda::gated_activation({x, half, x}, nullptr), ErrorCode::kInvalidArgument, "up is F16 [4, 64]");
  EXPECT_ERROR(cuda::gated_activation({x, x, few}, nullptr), ErrorCode::kInvalidArgument, "out is BF16 [3, 64]");
  EXPECT_ERROR(cuda::softcap({x, 3.0f}, nullptr), ErrorCode::kInvalidArgument, "softcap: logits is BF16 [4, 64]");
  EXPECT_ERROR(cuda::softcap({f32, 0.0f}, nullptr), ErrorCode::kUnsupported, "softcap: cap is 0");
  EXPECT_ERROR(cuda::add({x, few}, nullptr), ErrorCode::kInvalidArgument, "add: x is BF16 [3, 64]");
  EXPECT_ERROR(cuda::add({f32, f32}, nullptr), ErrorCode::kInvalidArgument, "add: residual is F32");
}

}  // namespace
}  // namespace quire::testing
