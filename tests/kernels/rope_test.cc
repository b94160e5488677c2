#include <cmath>

#include "tests/support/cpu_variants.h"
#include "tests/support/reference.h"

namespace quire::testing {
namespace {

struct RopeCase {
  int tokens = 5, heads = 3, head_size = 64, rot = 64;
  float magnitude = 1.0f;
  RopeKind kind = RopeKind::kHalfSplit;
};

std::vector<float> inverse_frequencies(int rot) {
  std::vector<float> inv_freq;
  for (int i = 0; i < rot / 2; ++i) inv_freq.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / rot)));
  return inv_freq;
}

std::vector<float> rope_table(std::vector<std::int32_t> positions, std::vector<float> inv_freq, float magnitude) {
  const auto tokens = static_cast<std::int64_t>(positions.size()), pairs = static_cast<std::int64_t>(inv_freq.size());
  std::vector<float> cos_sin(tokens * pairs * 2, NAN);
  ThreadPool pool(2);
  cpu::rope_table({TensorView(positions.data(), DType::kI32, {tokens}), TensorView(inv_freq.data(), DType::kF32, {pairs}),
                   magnitude, TensorView(cos_sin.data(), DType::kF32, {tokens, pairs, 2})},
                  pool);
  return cos_sin;
}

class RopeTest : public CpuKernelTest {
 protected:
  static std::vector<float> rotate(const cpu::KernelTable& kernels, const RopeCase& c, std::vector<float> x,
                                   const std::vector<std::int32_t>& positions, int threads = 1) {
    std::vector<float> cos_sin = rope_table(positions, inverse_frequencies(c.rot), c.magnitude);
    const auto tokens = static_cast<std::int64_t>(positions.size());
    ThreadPool pool(threads);
    kernels.rope({TensorView(x.data(), DType::kF32, {tokens, c.heads, c.head_size}),
                  TensorView(cos_sin.data(), DType::kF32, {tokens, c.rot / 2, 2}), c.kind},
                 pool);
    return x;
  }
};
QUIRE_INSTANTIATE_VARIANTS(RopeTest);

TEST_P(RopeTest, EqualsTheOracle) {
  const std::vector<std::int32_t> positions{0, 1, 17, 2047, 131071};
  for (const RopeKind kind : {RopeKind::kHalfSplit, RopeKind::kInterleaved}) {
    for (const auto& [head_size, rot] :
         {std::pair{64, 64}, {64, 32}, {80, 20}, {96, 96}, {128, 128}, {256, 256}, {512, 512}, {6, 2}}) {
      const RopeCase c{.head_size = head_size, .rot = rot, .magnitude = rot == 32 ? 1.25f : 1.0f, .kind = kind};
      const std::vector<float> x = noises(positions.size() * c.heads * head_size, rot);
      const std::vector<float> out = rotate(table(), c, x, positions);
      const std::vector<double> expected =
          reference::rope(x, positions, inverse_frequencies(rot), c.heads, head_size, c.magnitude, kind);
      EXPECT_TRUE(near(out, expected, 1e-6, 1e-6)) << head_size << " " << rot;
      EXPECT_TRUE(same_bits(out, rotate(portable(), c, x, positions, 2)));
    }
  }
}

TEST_P(RopeTest, RoundsAsStated) {  // fma(a, cos, -(b sin)) and fma(b, cos, a sin)
  const RopeCase c{.tokens = 1, .heads = 1, .head_size = 32, .rot = 32};
  const std::vector<float> x = noises(32, 5), table_row = rope_table({37}, inverse_frequencies(32), 1.0f);
  const std::vector<float> out = rotate(table(), c, x, {37});
  for (int i = 0; i < 16; ++i) {
    const float cos = table_row[2 * i], sin = table_row[2 * i + 1];
    EXPECT_EQ(out[i], std::fma(x[i], cos, -(x[i + 16] * sin)));
    EXPECT_EQ(out[i + 16], std::fma(x[i + 16], cos, x[i] * sin));
  }
}

TEST_P(RopeTest, TokensAreIndependent) {
  const RopeCase c;
  const std::vector<std::int32_t> positions{3, 9, 9, 1000, 4};
  const std::vector<float> x = noises(5 * 3 * 64, 8);
  const std::vector<float> all = rotate(table(), c, x, positions, 3);
  for (int t = 0; t < 5; ++t) {
    const std::vector<float> one(x.begin() + t * 192, x.begin() + (t + 1) * 192);
    EXPECT_TRUE(same_bits(rotate(table(), c, one, {positions[t]}), {all.begin() + t * 192, all.begin() + (t + 1) * 192}));
  }
}

TEST(RopeTable, RoundsDoublesOnce) {
  const std::vector<float> inv_freq = inverse_frequencies(64);
  const std::vector<std::int32_t> positions{0, 1, 4096, 1048575};
  const std::vector<float> cos_sin = rope_table(positions, inv_freq, 0.75f);
  for (std::size_t t = 0; t < positions.size(); ++t) {
    for (std::size_t i = 0; i < inv_freq.size(); ++i) {
      const double angle = static_cast<double>(positions[t]) * static_cast<double>(inv_freq[i]);
      EXPECT_EQ(cos_sin[(t * 32 + i) * 2], static_cast<float>(std::cos(angle) * 0.75));
      EXPECT_EQ(cos_sin[(t * 32 + i) * 2 + 1], static_cast<float>(std::sin(angle) * 0.75));
    }
  }
}

}  // namespace
}  // namespace quire::testing
