// matmul of every variant: against double precision, bit for bit between variants, and independent of batch, threads and layout.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/kernels/matmul_problem.h"
#include "tests/kernels/weight_formats.h"

namespace quire::test {
namespace {

struct Shape {
  std::int64_t outer, inner, rows;
};

// M with and without full groups of sixteen, R in every remainder of the row tiles, K over one and several pieces of panels.
std::vector<Shape> shapes(DType type) {
  std::vector<Shape> all{{1, 32, 1},  {3, 64, 2},    {7, 96, 3},    {16, 32, 4},    {17, 576, 5}, {16, 160, 6},  {33, 288, 7},
                         {8, 512, 8}, {25, 1536, 9}, {16, 1056, 2}, {16, 1056, 10}, {33, 64, 33}, {18, 96, 134}, {31, 800, 15}};
  if (block_elements(type) == 256) {
    for (Shape& s : all) s.inner = (s.inner + 255) / 256 * 256;
  }
  if (!is_quantized(type)) {
    for (const std::int64_t inner : {1, 15, 17, 40}) all.push_back({9, inner, 1 + inner % 5});
    for (const std::int64_t inner : {1023, 1025, 2051}) all.push_back({13, inner, 4 + inner % 7});  // widened 1,024 at a time
    all.push_back({3, 1040, 134});  // sums of more than one tile of rows wait for the second piece
  }
  return all;
}

class MatmulTest : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, MatmulTest, testing::ValuesIn(kWeightTypes),
                         [](const auto& test) { return std::string(to_string(test.param)); });

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool same = std::memcmp(&a[i], &b[i], sizeof(float)) == 0 || (std::isnan(a[i]) && std::isnan(b[i]));
    ASSERT_TRUE(same) << "element " << i << ": " << a[i] << " and " << b[i];
  }
}

TEST_P(MatmulTest, AgreesWithDoublePrecision) {
  for (const cpu::KernelTable* kernels : all_kernels()) {
    for (const Shape& s : shapes(GetParam())) {
      const MatmulProblem problem(GetParam(), s.outer, s.inner, s.rows, s.rows % 2 == 0);
      const std::vector<float> out = problem.run(*kernels);
      for (std::int64_t r = 0; r < s.rows; ++r) {
        for (std::int64_t m = 0; m < s.outer; ++m) {
          const Expected e = expected(problem, r, m);
          const auto value = static_cast<double>(out[static_cast<std::size_t>(r * s.outer + m)]);
          ASSERT_NEAR(value, e.value, e.bound)
              << kernels->isa << " M " << s.outer << " K " << s.inner << " row " << r << ", " << m;
          ASSERT_NEAR(value, e.unrounded_value, e.unrounded_bound) << kernels->isa;
        }
      }
    }
  }
}

TEST_P(MatmulTest, VariantsGiveTheSameBits) {
  const std::vector<const cpu::KernelTable*> tables = all_kernels();
  for (const Shape& s : shapes(GetParam())) {
    const MatmulProblem problem(GetParam(), s.outer, s.inner, s.rows, true, 2);
    const std::vector<float> reference = problem.run(*tables.front());
    for (const cpu::KernelTable* kernels : tables) expect_same_bits(problem.run(*kernels), reference);
  }
}

// What the CPU backend computes with, against weights as they lie in the file.
TEST_P(MatmulTest, PanelsGiveTheBitsOfRows) {
  if (!is_quantized(GetParam())) GTEST_SKIP() << "only quantised weights are kept in panels";
  for (const Shape& s : shapes(GetParam())) {
    MatmulProblem problem(GetParam(), s.outer, s.inner, s.rows, s.rows % 2 == 0, 12);
    problem.terms = s.rows % 3 == 0 ? 2 : 1;
    problem.panels = false;
    const std::vector<float> reference = problem.run(*all_kernels().front());
    for (const bool panels : {false, true}) {
      problem.panels = panels;
      for (const cpu::KernelTable* kernels : all_kernels()) expect_same_bits(problem.run(*kernels, 2), reference);
    }
  }
}

TEST_P(MatmulTest, ARowAloneGivesTheSameBitsAsInABatch) {
  for (const cpu::KernelTable* kernels : all_kernels()) {
    for (const Shape& s : shapes(GetParam())) {
      const MatmulProblem problem(GetParam(), s.outer, s.inner, s.rows, false, 3);
      const std::vector<float> batch = problem.run(*kernels);
      for (std::int64_t r = 0; r < s.rows; ++r) {
        expect_same_bits(problem.run_row(*kernels, r), {batch.begin() + r * s.outer, batch.begin() + (r + 1) * s.outer});
      }
    }
  }
}

TEST_P(MatmulTest, ThreadsDoNotChangeTheBits) {
  const MatmulProblem problem(GetParam(), 203, 256, 67, true, 4);
  for (const cpu::KernelTable* kernels : all_kernels()) {
    const std::vector<float> one = problem.run(*kernels, 1);
    for (const int threads : {2, 3}) expect_same_bits(problem.run(*kernels, threads), one);
  }
}

// A second term holds what the first leaves: the error of rounding falls by two orders, and every promise stays.
TEST_P(MatmulTest, TwoTermsAreCloserAndKeepThePromises) {
  const std::vector<const cpu::KernelTable*> tables = all_kernels();
  for (const Shape& s : shapes(GetParam())) {
    MatmulProblem problem(GetParam(), s.outer, s.inner, s.rows, s.rows % 2 == 0, 7);
    problem.terms = 2;
    const std::vector<float> reference = problem.run(*tables.front());
    for (const cpu::KernelTable* kernels : tables) {
      expect_same_bits(problem.run(*kernels, 3), reference);
      expect_same_bits(problem.run_row(*kernels, s.rows - 1), {reference.end() - s.outer, reference.end()});
    }
    for (std::int64_t i = 0; i < s.rows * s.outer; ++i) {
      const Expected e = expected(problem, i / s.outer, i % s.outer);
      const auto value = static_cast<double>(reference[static_cast<std::size_t>(i)]);
      ASSERT_NEAR(value, e.unrounded_value, 3 * e.bound + e.unrounded_bound / 100) << "K " << s.inner << " element " << i;
    }
  }
}

// Blocks of 18, 22, 34 and 210 bytes put weights on any even address.
TEST_P(MatmulTest, WeightsMayLieOnAnyEvenAddress) {
  if (GetParam() == DType::kF32) GTEST_SKIP() << "float weights lie on multiples of four";
  MatmulProblem problem(GetParam(), 9, 256, 6, true, 5);
  for (const cpu::KernelTable* kernels : all_kernels()) {
    problem.misalignment = 0;
    const std::vector<float> aligned = problem.run(*kernels);
    for (const std::size_t misalignment : {2, 14, 30, 62}) {
      problem.misalignment = misalignment;
      expect_same_bits(problem.run(*kernels), aligned);
    }
  }
}

// A row with a NaN or an infinity becomes NaN (float weights: what the arithmetic says) and leaves the other rows alone.
TEST_P(MatmulTest, NonFiniteActivationsSpoilTheirRowOnly) {
  constexpr std::int64_t kOuter = 11, kInner = 256, kRows = 6;
  const MatmulProblem clean(GetParam(), kOuter, kInner, kRows, false, 6);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    MatmulProblem problem = clean;
    problem.x[2 * kInner + 70] = bad;
    for (const cpu::KernelTable* kernels : all_kernels()) {
      const std::vector<float> expected_out = clean.run(*kernels);
      const std::vector<float> out = problem.run(*kernels);
      for (std::size_t i = 0; i < out.size(); ++i) {
        if (i / kOuter != 2) {
          EXPECT_EQ(out[i], expected_out[i]);
        } else if (is_quantized(GetParam()) || std::isnan(bad)) {
          EXPECT_TRUE(std::isnan(out[i]));
        } else {
          EXPECT_FALSE(std::isfinite(out[i]));
        }
      }
      expect_same_bits(out, problem.run(*all_kernels().front()));
    }
  }
}

TEST_P(MatmulTest, ExtremeFiniteActivationsStayDefined) {
  constexpr std::int64_t kInner = 256;
  for (const float value : {0.0f, -0.0f, std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::min(), 0x1p-101f,
                            0x1p-100f, 1e30f, std::numeric_limits<float>::max()}) {
    MatmulProblem problem(GetParam(), 9, kInner, 5, false, 7);
    for (std::size_t i = 0; i < problem.x.size(); ++i) problem.x[i] = i % 3 == 0 ? -value : value;
    const std::vector<float> reference = problem.run(*all_kernels().front());
    for (const cpu::KernelTable* kernels : all_kernels()) {
      const std::vector<float> out = problem.run(*kernels);
      for (const float v : out) EXPECT_FALSE(std::isnan(v) && value < 1e30f);
      expect_same_bits(out, reference);
    }
  }
}

// Four blocks are quantised together unless one of them is zero, tiny or not finite: such a block at each place among them.
TEST_P(MatmulTest, UnusualBlocksBesideOthers) {
  constexpr std::int64_t kInner = 256;
  for (const float value : {0.0f, 0x1p-101f, 0x1p-100f, 3e38f, std::numeric_limits<float>::infinity()}) {
    for (std::size_t block = 0; block < 5; ++block) {
      MatmulProblem problem(GetParam(), 5, kInner, 2, false, 8);
      for (std::size_t i = 0; i < 32; ++i) problem.x[block * 32 + i] = i % 2 == 0 ? value : -value;
      const std::vector<float> reference = problem.run(*all_kernels().front());
      for (const cpu::KernelTable* kernels : all_kernels()) expect_same_bits(problem.run(*kernels), reference);
    }
  }
}

// All bits of the weights set (-128 in Q8_0, the largest value and scale elsewhere) and activations at +-127: the largest sums
// that the 16-bit steps of a kernel can meet; few rows of activations and many.
TEST_P(MatmulTest, LargestIntegersDoNotOverflow) {
  if (!is_quantized(GetParam())) GTEST_SKIP() << "no integers";
  for (const int pattern : {0x00, 0x0f, 0x7f, 0x80, 0xf0, 0xff}) {
    for (const int rows : {-11, -4, 4, 11}) {  // negative: of negative activations
      MatmulProblem problem(GetParam(), 17, 256, std::abs(rows), false);
      for (std::size_t i = 0; i < problem.weights.size(); ++i) {
        problem.weights[i] = static_cast<std::byte>(pattern);
      }
      for (std::size_t at = 0; at < problem.weights.size(); at += static_cast<std::size_t>(block_bytes(GetParam()))) {
        for (const std::size_t position : scale_positions(GetParam())) {
          problem.weights[at + position] = std::byte{0};
          problem.weights[at + position + 1] = std::byte{0x20};  // 2^-7
        }
      }
      std::fill(problem.x.begin(), problem.x.end(), rows < 0 ? -1.0f : 1.0f);
      for (const cpu::KernelTable* kernels : all_kernels()) {
        const std::vector<float> out = problem.run(*kernels);
        for (std::size_t i = 0; i < out.size(); ++i) {
          const Expected e = expected(problem, static_cast<std::int64_t>(i) / 17, static_cast<std::int64_t>(i) % 17);
          ASSERT_NEAR(static_cast<double>(out[i]), e.value, e.bound + 1e-6 * std::abs(e.value)) << kernels->isa << " " << pattern;
        }
      }
    }
  }
}

// With 127 as the largest activation of a block the scale is one, and halves are ties: they round to even.
TEST_P(MatmulTest, TiesOfActivationsRoundToEven) {
  MatmulProblem problem(GetParam(), 9, 256, 2, false, 8);
  for (std::size_t i = 0; i < problem.x.size(); ++i) {
    const float tie = static_cast<float>(i % 32) + 0.5f;
    problem.x[i] = i % 32 == 31 ? 127.0f : i % 2 == 0 ? tie : -tie;
  }
  for (const cpu::KernelTable* kernels : all_kernels()) {
    const std::vector<float> out = problem.run(*kernels);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const Expected e = expected(problem, static_cast<std::int64_t>(i) / 9, static_cast<std::int64_t>(i) % 9);
      ASSERT_NEAR(static_cast<double>(out[i]), e.value, e.bound) << kernels->isa;
    }
  }
}

TEST_P(MatmulTest, NoRowsIsNoWork) {
  for (const cpu::KernelTable* kernels : all_kernels())
    EXPECT_TRUE(MatmulProblem(GetParam(), 9, 256, 0, false).run(*kernels).empty());
}

TEST_P(MatmulTest, SumsOfNothingAreTheBias) {
  for (const cpu::KernelTable* kernels : all_kernels()) {
    for (const std::int64_t rows : {1, 8, 20}) {
      const MatmulProblem problem(GetParam(), 19, 0, rows, true, 9);
      const std::vector<float> out = problem.run(*kernels);
      for (std::int64_t r = 0; r < rows; ++r) expect_same_bits({out.begin() + r * 19, out.begin() + (r + 1) * 19}, problem.bias);
    }
  }
}

// Three projections of one x, of different types and sizes, in one call: the bits of three calls. With many rows the tiles are as
// high as those of floats may be, whose sums wait for the second piece of K.
void expect_projections_do_not_meet(std::int64_t rows, std::int64_t inner, int terms) {
  MatmulProblem parts[]{{DType::kQ4_1, 19, inner, rows, true, 8},
                        {DType::kQ8_0, 3, inner, rows, false, 9},
                        {DType::kF16, 40, inner, rows, true, 10}};
  std::vector<float> x = parts[0].x;
  for (const cpu::KernelTable* kernels : all_kernels()) {
    for (const int threads : {1, 2}) {
      ThreadPool pool(threads);
      const AlignedBuffer scratch(cpu::matmul_scratch_bytes(rows, inner, terms));
      std::vector<float> out[3];
      MatmulArgs args;
      args.x = TensorView(x.data(), DType::kF32, {rows, inner});
      args.num_projections = 3;
      args.activation_terms = terms;
      for (std::size_t i = 0; i < 3; ++i) {
        out[i].resize(static_cast<std::size_t>(rows * parts[i].outer));
        args.projections[i].weight = TensorView(parts[i].weights.data(), parts[i].type, {parts[i].outer, inner});
        if (!parts[i].bias.empty()) args.projections[i].bias = TensorView(parts[i].bias.data(), DType::kF32, {parts[i].outer});
        args.projections[i].out = TensorView(out[i].data(), DType::kF32, {rows, parts[i].outer});
      }
      kernels->matmul(args, pool, scratch.data());
      for (std::size_t i = 0; i < 3; ++i) {
        parts[i].x = x;
        parts[i].terms = terms;
        parts[i].panels = false;
        expect_same_bits(out[i], parts[i].run(*kernels));
      }
    }
  }
}

TEST(Matmul, ProjectionsOfOneCallDoNotMeet) {
  for (const int terms : {1, 2}) {
    expect_projections_do_not_meet(6, 64, terms);
    expect_projections_do_not_meet(134, 1056, terms);
  }
}

// A slice of a larger matrix's rows is a view like any other.
TEST(Matmul, WeightsMayBeASliceOfRows) {
  const MatmulProblem whole(DType::kQ5_0, 24, 96, 3, false, 11);
  MatmulProblem part = whole;
  part.outer = 13;
  part.weights.assign(whole.weights.begin() + 5 * row_bytes(DType::kQ5_0, 96),
                      whole.weights.begin() + 18 * row_bytes(DType::kQ5_0, 96));
  for (const cpu::KernelTable* kernels : all_kernels()) {
    const std::vector<float> all = whole.run(*kernels);
    const std::vector<float> some = part.run(*kernels);
    for (std::size_t r = 0; r < 3; ++r) {
      for (std::size_t m = 0; m < 13; ++m) EXPECT_EQ(some[r * 13 + m], all[r * 24 + 5 + m]);
    }
  }
}

}  // namespace
}  // namespace quire::test
