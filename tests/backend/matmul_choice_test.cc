// Which of cuBLASLt's algorithms a product runs with: never one that the library refuses for this number of rows, or that wants
// more workspace than there is; in deterministic mode the same for all numbers of rows, or none. All is chosen when the product
// is prepared, after questions about some numbers of rows; the product itself asks nothing, and where it is refused for a number
// nobody asked about it is done in two parts.
#include <gtest/gtest.h>

#include <cmath>

#include "backend/cuda/cuda_backend.h"
#include "core/float16.h"
#include "simt/cublas_lt.h"
#include "simt/runtime.h"
#include "tests/support/cpu_variants.h"
#include "tests/support/expect_error.h"
#include "tests/support/quantize.h"

namespace quire::test {
namespace {

using testing::noises;

class MatmulChoice : public ::testing::Test {
 protected:
  static constexpr std::int64_t kOuter = 5, kInner = 300, kMostRows = 192;

  void TearDown() override { simt::set_matmul_algorithms({}); }

  static std::vector<std::uint16_t> bits_of(const std::vector<float>& values) {
    std::vector<std::uint16_t> bits;
    for (const float value : values) bits.push_back(float_to_bfloat16(value));
    return bits;
  }

  // Matrices in the memory of a backend: x [kMostRows, K], its first rows always the same, the weight [M, K], out.
  struct Problem {
    explicit Problem(CudaBackend& used) : backend(used) {
      const std::vector<std::uint16_t> x_bits = bits_of(noises(kMostRows * kInner, 1));
      const std::vector<std::uint16_t> weight_bits = bits_of(noises(kOuter * kInner, 2));
      x = backend.allocate(x_bits.size() * 2);
      weight = backend.allocate(weight_bits.size() * 2);
      out = backend.allocate(kMostRows * kOuter * 4);
      backend.upload(x.data(), x_bits.data(), x_bits.size() * 2);
      backend.upload(weight.data(), weight_bits.data(), weight_bits.size() * 2);
    }
    MatmulArgs args(std::int64_t rows) const {
      return {.x = TensorView(x.data(), DType::kBF16, {rows, kInner}),
              .num_projections = 1,
              .projections = {{TensorView(weight.data(), DType::kBF16, {kOuter, kInner}),
                               {},
                               TensorView(out.data(), DType::kF32, {rows, kOuter})}}};
    }
    std::vector<float> product(std::int64_t rows) const {
      std::vector<float> values(static_cast<std::size_t>(rows * kOuter), NAN);
      backend.upload(out.data(), values.data(), values.size() * 4);  // nothing is left of another product
      backend.matmul(args(rows));
      backend.download(values.data(), out.data(), values.size() * 4);
      return values;
    }
    std::vector<float> first_row(std::int64_t rows) const {
      const std::vector<float> values = product(rows);
      return {values.begin(), values.begin() + kOuter};
    }

    CudaBackend& backend;
    DeviceBuffer x, weight, out;
  };
};

// The best by estimate takes 128 rows, for which it is chosen, but not one row, or not the most, or not one number between.
TEST_F(MatmulChoice, DeterministicTakesTheFirstThatTakesAllRows) {
  simt::set_matmul_algorithms({{.least_columns = 2},
                               {.most_columns = kMostRows - 1},
                               {.except_columns = 91},
                               {.workspace_bytes = cuda::Matmul::kWorkspaceBytes + 1},
                               {.workspace_bytes = cuda::Matmul::kWorkspaceBytes, .descending = true},
                               {}});
  CudaBackend backend(0, {});
  const Problem problem(backend);
  backend.prepare_matmul(problem.args(kMostRows));
  const std::int64_t asked = simt::num_matmul_questions();
  const std::vector<float> one = problem.product(1);
  for (std::int64_t rows = 2; rows <= kMostRows; rows += 9) {
    EXPECT_TRUE(testing::same_bits(problem.first_row(rows), one)) << rows << " rows";
  }
  EXPECT_EQ(simt::num_matmul_questions(), asked);
  simt::set_matmul_algorithms({{.descending = true}});
  CudaBackend descending(0, {});
  EXPECT_TRUE(testing::same_bits(Problem(descending).product(1), one)) << "by another algorithm";
  simt::set_matmul_algorithms({});
  CudaBackend ascending(0, {});
  EXPECT_FALSE(testing::same_bits(Problem(ascending).product(1), one)) << "two algorithms cannot be told apart";
}

TEST_F(MatmulChoice, DeterministicRefusesWhatNoAlgorithmTakes) {
  CudaBackend backend(0, {});
  const Problem problem(backend);
  simt::set_matmul_algorithms({{.least_columns = 2}, {.most_columns = kMostRows - 1}, {.except_columns = 91}});
  EXPECT_ERROR(backend.prepare_matmul(problem.args(kMostRows)), ErrorCode::kUnsupported,
               "cuBLASLt has no algorithm for all of 1 to 192 rows of x BF16 [192, 300], weight BF16 [5, 300], out F32 [192, 5]");
  EXPECT_NO_THROW(backend.prepare_matmul(problem.args(90)));
  EXPECT_NO_THROW((void)problem.product(90));
}

// Two products that look alike, the second of more rows: one algorithm for both, or none.
TEST_F(MatmulChoice, DeterministicKeepsAnAlgorithmForMoreRows) {
  CudaBackend backend(0, {});
  const Problem problem(backend);
  simt::set_matmul_algorithms({{.most_columns = 150, .descending = true}, {}});
  backend.prepare_matmul(problem.args(100));
  EXPECT_NO_THROW(backend.prepare_matmul(problem.args(150)));
  EXPECT_TRUE(testing::same_bits(problem.first_row(150), problem.first_row(1)));
  EXPECT_ERROR(backend.prepare_matmul(problem.args(kMostRows)), ErrorCode::kUnsupported,
               "cuBLASLt's algorithm 0, chosen for 1 to 100 rows, does not take 151 rows of x BF16 [192, 300]");
}

// What is refused at once for a number of rows that was not asked about is the sum of two that were: with the same bits.
TEST_F(MatmulChoice, RowsThatAreRefusedAtTheCallAreTwoProducts) {
  for (const bool deterministic : {true, false}) {
    for (const simt::MatmulAlgorithm& algorithm : {simt::MatmulAlgorithm{.except_columns = 150, .descending = true},
                                                   simt::MatmulAlgorithm{.large_workspace_columns = 150, .descending = true}}) {
      simt::set_matmul_algorithms({algorithm, {}});
      CudaBackend backend(0, {.deterministic = deterministic});
      const Problem problem(backend);
      backend.prepare_matmul(problem.args(kMostRows));
      const std::int64_t asked = simt::num_matmul_questions();
      const std::vector<float> all = problem.product(kMostRows);
      const std::int64_t launches = simt::runtime_counts().launches;
      EXPECT_TRUE(testing::same_bits(problem.product(149), {all.begin(), all.begin() + 149 * kOuter}));
      EXPECT_EQ(simt::runtime_counts().launches, launches + 1);
      EXPECT_TRUE(testing::same_bits(problem.product(150), {all.begin(), all.begin() + 150 * kOuter}));
      EXPECT_EQ(simt::runtime_counts().launches, launches + 3);
      EXPECT_EQ(simt::num_matmul_questions(), asked);
    }
  }
}

// Any other number is (R / 64 - 1) * 64 rows and what is left.
TEST_F(MatmulChoice, AsksAboutRowsUpTo128AndTheMultiplesOf64) {
  CudaBackend backend(0, {});
  const Problem problem(backend);
  const std::int64_t before = simt::num_matmul_questions();
  backend.prepare_matmul(problem.args(kMostRows));
  EXPECT_EQ(simt::num_matmul_questions(), before + 1 + 128 + 1) << "proposals; 1 to 128 rows; 192";
  for (const int rows : {1, 63, 65, 127, 128, 192}) {
    simt::set_matmul_algorithms({{.except_columns = static_cast<std::uint64_t>(rows)}});
    CudaBackend other(0, {});
    EXPECT_ERROR(other.prepare_matmul(problem.args(kMostRows)), ErrorCode::kUnsupported, "cuBLASLt has no algorithm for all of");
  }
}

// Nobody has prepared it: then it is at its first call.
TEST_F(MatmulChoice, DeterministicTakesAllRowsOfWhatWasNotPrepared) {
  CudaBackend backend(0, {});
  const Problem problem(backend);
  simt::set_matmul_algorithms({{.most_columns = kMostRows - 1, .descending = true}, {}});
  EXPECT_TRUE(testing::same_bits(problem.first_row(3), problem.first_row(kMostRows)));
}

// Not deterministic: chosen for buckets of rows, and in them anew for those that it does not take.
TEST_F(MatmulChoice, OtherwiseFollowsTheRows) {
  simt::set_matmul_algorithms({{.least_columns = 8, .except_columns = 13}, {.most_columns = 13, .descending = true}});
  CudaBackend backend(0, {.deterministic = false});
  const Problem problem(backend);
  backend.prepare_matmul(problem.args(kMostRows));
  const std::int64_t asked = simt::num_matmul_questions();
  const std::vector<float> ascending = problem.first_row(8), descending = problem.first_row(1);
  EXPECT_FALSE(testing::same_bits(ascending, descending));
  for (std::int64_t rows = 1; rows <= kMostRows; rows += rows < 20 ? 1 : 9) {
    EXPECT_TRUE(testing::same_bits(problem.first_row(rows), rows < 8 || rows == 13 ? descending : ascending)) << rows;
  }
  EXPECT_EQ(simt::num_matmul_questions(), asked);
}

TEST_F(MatmulChoice, OtherwiseRefusesRowsThatNoAlgorithmTakes) {
  CudaBackend backend(0, {.deterministic = false});
  const Problem problem(backend);
  simt::set_matmul_algorithms({{.except_columns = 6}});
  EXPECT_ERROR(backend.prepare_matmul(problem.args(20)), ErrorCode::kUnsupported, "no algorithm for 6 rows of x BF16 [20, 300]");
  EXPECT_NO_THROW(backend.prepare_matmul(problem.args(5)));
  EXPECT_NO_THROW((void)problem.product(9));
  EXPECT_ERROR(problem.product(6), ErrorCode::kUnsupported, "no algorithm for 6 rows of x BF16 [6, 300]");
}

// A packed weight becomes floats some rows at a time, for more rows than the kernel for few takes: these pieces are prepared.
TEST_F(MatmulChoice, PiecesOfPackedWeightsArePreparedToo) {
  constexpr std::int64_t kRows = 40, kWidth = 128, kTall = 80;
  CudaBackend backend(0, {.deterministic = false}, 48 * kWidth * 2);
  std::vector<std::byte> file = quantize(DType::kQ4_0, noises(kTall * kWidth, 2, 0.1f));
  const DeviceBuffer x = backend.allocate(kRows * kWidth * 2), out = backend.allocate(kRows * kTall * 4);
  const DeviceBuffer packed = backend.allocate(file.size());
  const TensorView weight(packed.data(), DType::kQ4_0, {kTall, kWidth});
  const TensorView from(file.data(), DType::kQ4_0, {kTall, kWidth});
  backend.upload_matrix(weight, from);
  const auto args = [&](std::int64_t rows) {
    return MatmulArgs{.x = TensorView(x.data(), DType::kBF16, {rows, kWidth}),
                      .num_projections = 1,
                      .projections = {{weight, {}, TensorView(out.data(), DType::kF32, {rows, kTall})}}};
  };
  simt::set_matmul_algorithms({{.except_columns = 3}});  // the other kernel's
  backend.prepare_matmul(args(kRows));
  const std::int64_t asked = simt::num_matmul_questions();
  for (std::int64_t rows = 1; rows <= kRows; ++rows) backend.matmul(args(rows));
  backend.synchronize();
  EXPECT_EQ(simt::num_matmul_questions(), asked);
  simt::set_matmul_algorithms({{.except_columns = 31}});
  CudaBackend other(0, {.deterministic = false}, 48 * kWidth * 2);
  other.upload_matrix(weight, from);
  EXPECT_NO_THROW(other.prepare_matmul(args(30)));
  EXPECT_ERROR(other.prepare_matmul(args(kRows)), ErrorCode::kUnsupported, "no algorithm for 31 rows");
}

}  // namespace
}  // namespace quire::test
