// Which of cuBLASLt's algorithms a product runs with: never one that the library refuses for this number of rows, or that wants
// more workspace than there is; in deterministic mode the same for all numbers of rows, or none.
#include <gtest/gtest.h>

#include "backend/cuda/cuda_backend.h"
#include "core/float16.h"
#include "simt/cublas_lt.h"
#include "tests/support/cpu_variants.h"
#include "tests/support/expect_error.h"

namespace quire::test {
namespace {

using testing::noises;

class MatmulChoice : public ::testing::Test {
 protected:
  static constexpr std::int64_t kOuter = 5, kInner = 300, kMostRows = 200;

  void TearDown() override { simt::set_matmul_algorithms({}); }

  static std::vector<std::uint16_t> bits_of(const std::vector<float>& values) {
    std::vector<std::uint16_t> bits;
    for (const float value : values) bits.push_back(float_to_bfloat16(value));
    return bits;
  }

  // x [rows, K], its first rows always the same, times the weight [M, K].
  static std::vector<float> product(CudaBackend& backend, std::int64_t rows) {
    const std::vector<std::uint16_t> x = bits_of(noises(kMostRows * kInner, 1)), weight = bits_of(noises(kOuter * kInner, 2));
    const DeviceBuffer x_memory = backend.allocate(x.size() * 2), weight_memory = backend.allocate(weight.size() * 2);
    const DeviceBuffer out_memory = backend.allocate(kMostRows * kOuter * 4);
    backend.upload(x_memory.data(), x.data(), x.size() * 2);
    backend.upload(weight_memory.data(), weight.data(), weight.size() * 2);
    backend.matmul({.x = TensorView(x_memory.data(), DType::kBF16, {rows, kInner}),
                    .num_projections = 1,
                    .projections = {{TensorView(weight_memory.data(), DType::kBF16, {kOuter, kInner}),
                                     {},
                                     TensorView(out_memory.data(), DType::kF32, {rows, kOuter})}}});
    std::vector<float> out(static_cast<std::size_t>(rows * kOuter));
    backend.download(out.data(), out_memory.data(), out.size() * 4);
    return out;
  }

  static std::vector<float> first_row(const std::vector<float>& out) { return {out.begin(), out.begin() + kOuter}; }
};

// The best by estimate takes 128 rows, for which it is chosen, but not one row, or not the most.
TEST_F(MatmulChoice, DeterministicTakesTheFirstThatTakesAllRows) {
  simt::set_matmul_algorithms({{.least_columns = 2},
                               {.most_columns = kMostRows - 1},
                               {.workspace_bytes = cuda::Matmul::kWorkspaceBytes + 1},
                               {.workspace_bytes = cuda::Matmul::kWorkspaceBytes, .descending = true},
                               {}});
  CudaBackend backend(0, {});
  backend.prepare({.max_tokens = kMostRows, .max_logit_rows = 1, .vocab_size = 8});
  const std::vector<float> one = product(backend, 1);
  for (const std::int64_t rows : {2, 3, 17, 128, 129, 200}) {
    EXPECT_TRUE(testing::same_bits(first_row(product(backend, rows)), one)) << rows << " rows";
  }
  simt::set_matmul_algorithms({{.descending = true}});
  CudaBackend descending(0, {});
  EXPECT_TRUE(testing::same_bits(product(descending, 1), one)) << "by another algorithm";
  simt::set_matmul_algorithms({});
  CudaBackend ascending(0, {});
  EXPECT_FALSE(testing::same_bits(product(ascending, 1), one)) << "two algorithms cannot be told apart";
}

TEST_F(MatmulChoice, DeterministicRefusesWhatNoAlgorithmTakes) {
  simt::set_matmul_algorithms({{.least_columns = 2}, {.most_columns = kMostRows - 1}});
  CudaBackend backend(0, {});
  backend.prepare({.max_tokens = kMostRows, .max_logit_rows = 1, .vocab_size = 8});
  EXPECT_ERROR(product(backend, 128), ErrorCode::kUnsupported,
               "cuBLASLt has no algorithm for 1 to 200 rows of x BF16 [128, 300], weight BF16 [5, 300], out F32 [128, 5]");
}

// A number of rows that none of those tried before stands for.
TEST_F(MatmulChoice, DeterministicRefusesRowsThatTheAlgorithmDoesNotTake) {
  simt::set_matmul_algorithms({{}});
  CudaBackend backend(0, {});
  backend.prepare({.max_tokens = 100, .max_logit_rows = 1, .vocab_size = 8});
  (void)product(backend, 90);
  simt::set_matmul_algorithms({{.most_columns = 90}});
  EXPECT_NO_THROW((void)product(backend, 90));
  EXPECT_ERROR(
      product(backend, 91), ErrorCode::kUnsupported,
      "cuBLASLt's algorithm 0, chosen for 128 rows, does not take x BF16 [91, 300], weight BF16 [5, 300], out F32 [91, 5]");
}

// Not deterministic: chosen for a bucket of rows, and anew for those that it does not take.
TEST_F(MatmulChoice, OtherwiseChoosesAnew) {
  simt::set_matmul_algorithms({{.least_columns = 8}, {.most_columns = 7, .descending = true}});
  CudaBackend backend(0, {.deterministic = false});
  const std::vector<float> eight = product(backend, 8), five = product(backend, 5);
  EXPECT_FALSE(testing::same_bits(first_row(eight), first_row(five)));
  simt::set_matmul_algorithms({{.least_columns = 8}});
  EXPECT_ERROR(product(backend, 6), ErrorCode::kUnsupported, "no algorithm for 6 to 6 rows");
}

}  // namespace
}  // namespace quire::test
