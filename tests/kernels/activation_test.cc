#include <cmath>

#include "tests/support/cpu_variants.h"
#include "tests/support/reference.h"

namespace quire::testing {
namespace {

class ActivationTest : public CpuKernelTest {
 protected:
  static std::vector<float> gated(const cpu::KernelTable& kernels, std::vector<float> gate, std::vector<float> up, int rows,
                                  Activation activation, int threads = 1) {
    const std::int64_t width = static_cast<std::int64_t>(gate.size()) / rows;
    std::vector<float> out(gate.size(), NAN);
    const auto view = [&](std::vector<float>& x) { return TensorView(x.data(), DType::kF32, {rows, width}); };
    ThreadPool pool(threads);
    kernels.gated_activation({view(gate), view(up), view(out), activation}, pool);
    return out;
  }
  static std::vector<float> softcap(const cpu::KernelTable& kernels, std::vector<float> logits, float cap, int threads = 1) {
    ThreadPool pool(threads);
    kernels.softcap({TensorView(logits.data(), DType::kF32, {1, static_cast<std::int64_t>(logits.size())}), cap}, pool);
    return logits;
  }
};
QUIRE_INSTANTIATE_VARIANTS(ActivationTest);

TEST_P(ActivationTest, GatedEqualsTheOracle) {
  for (const int width : {1, 15, 16, 33, 1536, 2048, 5000}) {
    constexpr int kRows = 3;
    const std::vector<float> gate = noises(kRows * width, 1, 4.0f), up = noises(kRows * width, 2);
    for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
      std::vector<double> expected;
      for (std::size_t i = 0; i < gate.size(); ++i) {
        expected.push_back((activation == Activation::kSilu ? reference::silu(gate[i]) : reference::gelu_tanh(gate[i])) * up[i]);
      }
      const std::vector<float> out = gated(table(), gate, up, kRows, activation);
      EXPECT_TRUE(near(out, expected, 1e-6, 1e-6)) << width;
      EXPECT_TRUE(same_bits(out, gated(portable(), gate, up, kRows, activation, 3)));
      const std::vector<float> last(gate.end() - width, gate.end()), last_up(up.end() - width, up.end());
      EXPECT_TRUE(same_bits(gated(table(), last, last_up, 1, activation), {out.end() - width, out.end()}));
    }
  }
}

TEST_P(ActivationTest, HalvesOfOneFusedRowInPlace) {
  constexpr int kWidth = 37, kRows = 3;
  std::vector<float> fused = noises(kRows * 2 * kWidth, 4);
  const std::vector<float> before = fused;
  TensorView gate(fused.data(), DType::kF32, {kRows, kWidth}), up(fused.data() + kWidth, DType::kF32, {kRows, kWidth});
  gate.outer_stride = up.outer_stride = 2 * kWidth;
  ThreadPool pool(1);
  table().gated_activation({gate, up, gate, Activation::kSilu}, pool);
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kWidth; ++i) {
      const float g = before[r * 2 * kWidth + i], u = before[(r * 2 + 1) * kWidth + i];
      EXPECT_NEAR(fused[r * 2 * kWidth + i], reference::silu(g) * u, 1e-6);
      EXPECT_EQ(fused[(r * 2 + 1) * kWidth + i], u);
    }
  }
}

TEST_P(ActivationTest, SoftcapEqualsTheOracle) {
  for (const int width : {1, 100, 2048, 9001}) {
    const std::vector<float> logits = noises(width, 3, 40.0f);
    std::vector<double> expected;
    for (const float x : logits) expected.push_back(30.0 * std::tanh(double{x} / 30.0));
    const std::vector<float> out = softcap(table(), logits, 30.0f);
    EXPECT_TRUE(near(out, expected, 1e-6, 0.0)) << width;
    EXPECT_TRUE(same_bits(out, softcap(portable(), logits, 30.0f, 2)));
  }
}

TEST_P(ActivationTest, SoftcapKeepsOrderAndNan) {
  const std::vector<float> out = softcap(table(), {1e-6f, -1e30f, 1e30f, NAN, INFINITY}, 30.0f);
  EXPECT_NEAR(out[0], 1e-6f, 1e-12f);
  EXPECT_EQ(out[1], -30.0f);
  EXPECT_EQ(out[2], 30.0f);
  EXPECT_TRUE(std::isnan(out[3]));
  EXPECT_EQ(out[4], 30.0f);
}

}  // namespace
}  // namespace quire::testing
