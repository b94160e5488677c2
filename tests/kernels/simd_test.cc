// F32x16 and the functions built on it: each variant against arithmetic written out here, and errors of the elementary functions
// against double precision.
#include <array>
#include <bit>
#include <cmath>
#include <functional>

#include "tests/kernels/simd_probe.h"
#include "tests/support/cpu_variants.h"
#include "tests/support/reference.h"

namespace quire::testing {
namespace {

using Lanes = std::array<float, 16>;

class SimdTest : public CpuKernelTest {
 protected:
  const SimdProbe& probe() const {
    [[maybe_unused]] const std::string_view name = GetParam();
#if QUIRE_HAS_X86_VARIANTS
    if (name == "avx2") return cpu::avx2::kProbe;
    if (name == "avx512") return cpu::avx512::kProbe;
#endif
#if QUIRE_HAS_AVX512_SIMDE
    if (name == "avx512_simde") return cpu::avx512_simde::kProbe;
#endif
    return cpu::portable::kProbe;
  }

  // In units of the last place of the exact result, over [low, high] in `steps`; lanes in every position.
  double largest_error(SimdProbe::Map function, const std::function<double(double)>& exact, float low, float high,
                       int steps) const {
    double largest = 0.0;
    for (int i = 0; i < steps; i += 16) {
      Lanes in, out;
      for (int l = 0; l < 16; ++l) in[l] = low + (high - low) * (static_cast<float>(i + l) / static_cast<float>(steps));
      function(in.data(), out.data());
      for (int l = 0; l < 16; ++l) {
        const double want = exact(in[l]);
        const double unit = std::ldexp(1.0, std::max(std::ilogb(want), -126) - 23);
        largest = std::max(largest, std::abs(out[l] - want) / unit);
      }
    }
    return largest;
  }
};
QUIRE_INSTANTIATE_VARIANTS(SimdTest);

float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }
std::uint32_t bits_of(float f) { return std::bit_cast<std::uint32_t>(f); }

// Floats of every kind: special values, halfway cases of the narrow formats, and random bits.
std::vector<float> many_floats() {
  std::vector<float> values{
      0.0f,     -0.0f,  1.0f,     -1.0f,    INFINITY,        -INFINITY,  NAN,      65504.0f,     65519.996f,   65520.0f,
      65536.0f, 1e-45f, 0x1p-24f, 0x1p-25f, 0x1.000002p-25f, 0x1.8p-24f, 0x1p-14f, 0x1.ffcp-15f, 0x1.ffep-15f, 0x1p-126f};
  for (std::uint32_t h = 0; h < 65536; ++h) {  // around each bfloat16 and its halfway point
    for (const std::uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      values.push_back(from_bits(h << 16 | low));
  }
  for (std::uint32_t e = 100; e < 150; ++e) {  // around the halfway points of half precision
    for (std::uint32_t m = 0; m < 1024; m += 7) {
      for (const std::uint32_t low : {0x0fffu, 0x1000u, 0x1001u}) values.push_back(from_bits(e << 23 | m << 13 | low));
    }
  }
  for (std::uint64_t i = 0; i < 200000; ++i) values.push_back(from_bits(static_cast<std::uint32_t>(hash(i))));
  return values;
}

double half_value(std::uint16_t h) {  // of a finite one
  const int exponent = (h >> 10) & 31;
  const double magnitude = exponent == 0 ? std::ldexp(h & 1023, -24) : std::ldexp(1024 + (h & 1023), exponent - 25);
  return (h & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST_P(SimdTest, EveryHalfWidens) {
  for (std::uint32_t h = 0; h < 65536; ++h) {
    const auto half = static_cast<std::uint16_t>(h);
    const float f = probe().f16_to_f32(half);
    if ((h & 0x7c00) != 0x7c00) {
      ASSERT_EQ(f, half_value(half)) << h;
      ASSERT_EQ(std::signbit(f), h >= 0x8000) << h;
    } else if ((h & 0x3ff) == 0) {
      ASSERT_EQ(f, h < 0x8000 ? INFINITY : -INFINITY);
    } else {  // the payload stays, and the NaN is quiet
      ASSERT_EQ(bits_of(f), (h & 0x8000) << 16 | 0x7fc00000u | (h & 0x3ff) << 13) << h;
    }
    std::uint16_t lanes[16];
    Lanes wide;
    for (int l = 0; l < 16; ++l) lanes[l] = static_cast<std::uint16_t>(h + l);
    probe().load_f16(lanes, wide.data());
    for (int l = 0; l < 16; ++l) ASSERT_EQ(bits_of(wide[l]), bits_of(probe().f16_to_f32(lanes[l])));
  }
}

TEST_P(SimdTest, EveryBfloatWidens) {
  for (std::uint32_t b = 0; b < 65536; ++b) {
    ASSERT_EQ(bits_of(probe().bf16_to_f32(static_cast<std::uint16_t>(b))), b << 16);
    std::uint16_t lanes[16];
    Lanes wide;
    for (int l = 0; l < 16; ++l) lanes[l] = static_cast<std::uint16_t>(b + l);
    probe().load_bf16(lanes, wide.data());
    for (int l = 0; l < 16; ++l) ASSERT_EQ(bits_of(wide[l]), std::uint32_t{lanes[l]} << 16);
  }
}

// The nearest half, the even one of two: by trying the neighbours of a first guess.
std::uint16_t nearest_half(float f) {
  const double magnitude = std::abs(static_cast<double>(f));
  const std::uint16_t sign = std::signbit(f) ? 0x8000 : 0;
  if (magnitude >= 65520.0) return sign | 0x7c00;
  std::uint16_t low = 0, high = 0x7bff;  // the greatest half that is not above
  while (low < high) {
    const auto middle = static_cast<std::uint16_t>((low + high + 1) / 2);
    (half_value(middle) <= magnitude ? low : high) =
        static_cast<std::uint16_t>(half_value(middle) <= magnitude ? middle : middle - 1);
  }
  const double below = magnitude - half_value(low);
  const double above = (low == 0x7bff ? 65536.0 : half_value(static_cast<std::uint16_t>(low + 1))) - magnitude;
  return sign | static_cast<std::uint16_t>(above < below || (above == below && (low & 1) != 0) ? low + 1 : low);
}

TEST_P(SimdTest, FloatsNarrowToNearestEven) {
  for (const float f : many_floats()) {
    const std::uint16_t half = probe().f32_to_f16(f);
    const std::uint16_t bfloat = probe().f32_to_bf16(f);
    if (std::isnan(f)) {
      ASSERT_EQ(half & 0x7e00, 0x7e00) << bits_of(f);
      ASSERT_EQ(half, (bits_of(f) >> 16 & 0x8000) | 0x7e00 | (bits_of(f) >> 13 & 0x3ff)) << bits_of(f);
      ASSERT_EQ(bfloat, bits_of(f) >> 16 | 0x40) << bits_of(f);
      continue;
    }
    ASSERT_EQ(half, nearest_half(f)) << f;
    const std::uint32_t rest = bits_of(f) & 0xffff, kept = bits_of(f) >> 16;
    ASSERT_EQ(bfloat, kept + (rest > 0x8000 || (rest == 0x8000 && (kept & 1) != 0) ? 1 : 0)) << f;
  }
}

TEST_P(SimdTest, LanesAreIeeeOperations) {
  const std::vector<float> values = many_floats();
  const auto check = [&](const char* what, auto lanes, auto scalar) {
    for (std::size_t i = 0; i + 48 < values.size(); i += 17) {
      const float *a = &values[i], *b = &values[values.size() - 16 - i], *c = &values[i + 31];
      Lanes out;
      lanes(a, b, c, out.data());
      for (int l = 0; l < 16; ++l) ASSERT_TRUE(same_bits(out[l], scalar(a[l], b[l], c[l]))) << what << " " << a[l] << " " << b[l];
    }
  };
  const SimdProbe& p = probe();
  const auto two = [](SimdProbe::Map2 f) {
    return [f](const float* a, const float* b, const float*, float* out) { f(a, b, out); };
  };
  check("+", two(p.add), [](float a, float b, float) { return a + b; });
  check("-", two(p.subtract), [](float a, float b, float) { return a - b; });
  check("*", two(p.multiply), [](float a, float b, float) { return a * b; });
  check("/", two(p.divide), [](float a, float b, float) { return a / b; });
  check("max", two(p.max), [](float a, float b, float) { return a > b ? a : b; });
  check("min", two(p.min), [](float a, float b, float) { return a < b ? a : b; });
  check("fma", p.fma, [](float a, float b, float c) { return std::fma(a, b, c); });
  for (std::size_t i = 2; i < values.size(); i += 5) {
    ASSERT_TRUE(
        same_bits(p.fma_scalar(values[i], values[i - 1], values[i - 2]), std::fma(values[i], values[i - 1], values[i - 2])));
  }
}

TEST_P(SimdTest, MaxAndMinTakeTheSecondIfEitherIsNan) {
  Lanes one, nan, out;
  one.fill(1.0f);
  nan.fill(NAN);
  for (const auto function : {probe().max, probe().min}) {
    function(one.data(), nan.data(), out.data());
    EXPECT_TRUE(std::isnan(out[3]));
    function(nan.data(), one.data(), out.data());
    EXPECT_EQ(out[12], 1.0f);
  }
}

TEST_P(SimdTest, RoundingAndPowersOfTwo) {
  Lanes in, out;
  for (int n = -126; n <= 127; ++n) {
    in.fill(static_cast<float>(n));
    probe().exp2_integral(in.data(), out.data());
    for (const float f : out) ASSERT_EQ(f, std::ldexp(1.0f, n));
  }
  for (float f = -9.0f; f < 9.0f; f += 0.125f) {
    in.fill(f);
    probe().round_even(in.data(), out.data());
    ASSERT_EQ(out[5], std::nearbyint(f));
  }
}

TEST_P(SimdTest, SumsGoThroughOneTree) {
  std::vector<float> rows(64);
  for (std::uint64_t round = 0; round < 1000; ++round) {
    for (std::size_t i = 0; i < 64; ++i) rows[i] = noise(round * 64 + i, std::exp2(noise(i + round, 8.0f)));
    float sums[4];
    probe().reduce_add4(rows.data(), sums);
    for (int r = 0; r < 4; ++r) {
      float s[16];
      std::copy_n(rows.begin() + r * 16, 16, s);
      for (const int width : {8, 4, 2, 1}) {
        for (int l = 0; l < width; ++l) s[l] += s[l + width];
      }
      ASSERT_EQ(bits_of(probe().reduce_add(&rows[r * 16])), bits_of(s[0]));
      ASSERT_EQ(bits_of(sums[r]), bits_of(s[0]));
    }
  }
}

TEST_P(SimdTest, PartsOfVectors) {
  for (int count = 0; count <= 16; ++count) {
    const std::vector<float> exact = noises(count, 1);  // reading beyond is for the address sanitiser to see
    Lanes out;
    probe().load_part(exact.data(), count, -3.0f, out.data());
    for (int l = 0; l < 16; ++l) ASSERT_EQ(out[l], l < count ? exact[l] : -3.0f);
    std::vector<float> stored(count);
    probe().store_part(out.data(), count, stored.data());
    ASSERT_EQ(stored, exact);
  }
}

TEST_P(SimdTest, ErrorsOfElementaryFunctions) {
  const auto exp = [](double x) { return std::exp(x); };
  const auto tanh = [](double x) { return std::tanh(x); };
  constexpr int kSteps = 1 << 20;
  EXPECT_LT(largest_error(probe().exp, exp, -87.3f, 88.72f, kSteps), 1.1);
  EXPECT_LT(largest_error(probe().exp, exp, -104.0f, -87.3f, kSteps), 1.1);  // units are those of subnormals here
  EXPECT_LT(largest_error(probe().exp, exp, -1.0f, 1.0f, kSteps), 1.1);
  EXPECT_LT(largest_error(probe().tanh, tanh, -11.0f, 11.0f, kSteps), 4.0);
  EXPECT_LT(largest_error(probe().tanh, tanh, -1e-3f, 1.1e-3f, kSteps), 4.0);
  EXPECT_LT(largest_error(probe().silu, reference::silu, -80.0f, 80.0f, kSteps), 3.0);
  const double gelu_error = largest_error(probe().gelu_tanh, reference::gelu_tanh, -1.0f, 20.0f, kSteps);
  EXPECT_LT(gelu_error, 16.0);  // 1 + tanh cancels where x is negative
}

TEST_P(SimdTest, ElementaryFunctionsAtTheEdges) {
  const auto at = [](SimdProbe::Map function, float x) {
    Lanes in, out;
    in.fill(x);
    function(in.data(), out.data());
    return out[7];
  };
  EXPECT_EQ(at(probe().exp, 0.0f), 1.0f);
  EXPECT_EQ(at(probe().exp, -INFINITY), 0.0f);
  EXPECT_EQ(at(probe().exp, -104.0f), 0.0f);
  EXPECT_EQ(at(probe().exp, -103.0f), 0x1p-149f);
  EXPECT_EQ(at(probe().exp, -1e30f), 0.0f);
  EXPECT_EQ(at(probe().exp, INFINITY), INFINITY);
  EXPECT_EQ(at(probe().exp, 89.0f), INFINITY);
  EXPECT_EQ(at(probe().exp, 1e30f), INFINITY);
  EXPECT_LT(at(probe().exp, 88.72f), INFINITY);
  EXPECT_TRUE(std::isnan(at(probe().exp, NAN)));
  EXPECT_EQ(at(probe().tanh, INFINITY), 1.0f);
  EXPECT_EQ(at(probe().tanh, -INFINITY), -1.0f);
  EXPECT_EQ(at(probe().tanh, 0.0f), 0.0f);
  EXPECT_EQ(at(probe().tanh, 1e-30f), 1e-30f);
  EXPECT_TRUE(std::isnan(at(probe().tanh, NAN)));
  EXPECT_EQ(at(probe().silu, -200.0f), 0.0f);
  EXPECT_EQ(at(probe().silu, 200.0f), 200.0f);
  EXPECT_TRUE(std::isnan(at(probe().silu, NAN)));
  EXPECT_EQ(at(probe().gelu_tanh, -200.0f), 0.0f);
  EXPECT_EQ(at(probe().gelu_tanh, 3e38f), 3e38f);
  EXPECT_TRUE(std::isnan(at(probe().gelu_tanh, NAN)));
}

TEST_P(SimdTest, FunctionsHaveTheBitsOfThePortableVariant) {
  const std::vector<float> values = many_floats();
  const SimdProbe &p = probe(), &q = cpu::portable::kProbe;
  const std::pair<SimdProbe::Map, SimdProbe::Map> pairs[] = {
      {p.exp, q.exp}, {p.tanh, q.tanh}, {p.silu, q.silu}, {p.gelu_tanh, q.gelu_tanh}};
  for (std::size_t i = 0; i + 16 <= values.size(); i += 16) {
    for (const auto& [mine, theirs] : pairs) {
      Lanes a, b;
      mine(&values[i], a.data());
      theirs(&values[i], b.data());
      for (int l = 0; l < 16; ++l) ASSERT_TRUE(same_bits(a[l], b[l])) << values[i + l];
    }
  }
}

}  // namespace
}  // namespace quire::testing
