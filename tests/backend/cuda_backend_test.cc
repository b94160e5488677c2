// The CUDA backend's memory and weights, on the emulator: transfers larger than what is staged at a time, and every way in which
// a file's matrix becomes a device's.
#include "backend/cuda/cuda_backend.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "core/float16.h"
#include "tests/support/cpu_variants.h"
#include "tests/support/expect_error.h"
#include "tests/support/quantize.h"

namespace quire::test {
namespace {

using testing::noises;

TensorView view(const DeviceBuffer& buffer, DType type, std::initializer_list<std::int64_t> dims) {
  return TensorView(buffer.data(), type, dims);
}

std::vector<float> downloaded(Backend& backend, const TensorView& x) {
  std::vector<std::uint16_t> bits(static_cast<std::size_t>(x.num_elements()));
  backend.download(bits.data(), x.data, bits.size() * 2);
  std::vector<float> values;
  for (const std::uint16_t b : bits) values.push_back(x.dtype == DType::kF16 ? half_to_float(b) : bfloat16_to_float(b));
  return values;
}

TEST(CudaBackendTest, MovesMoreThanItStagesAtATime) {
  CudaBackend backend(0, {});
  std::vector<std::uint32_t> sent(10'000'000), received(sent.size());
  std::iota(sent.begin(), sent.end(), 7u);
  const DeviceBuffer memory = backend.allocate(sent.size() * 4);
  backend.upload(memory.data(), sent.data(), sent.size() * 4);
  std::vector<std::uint32_t> copy = sent;
  std::fill(sent.begin(), sent.end(), 0u);  // its memory is free once upload() has returned
  backend.download(received.data(), memory.data(), received.size() * 4);
  EXPECT_TRUE(received == copy);
}

TEST(CudaBackendTest, KeepsAMatrixInTheTypeItSays) {
  constexpr std::int64_t kRows = 32, kColumns = 256;
  const std::vector<float> values = noises(kRows * kColumns, 1, 0.1f);
  for (const bool deterministic : {true, false}) {
    CudaBackend backend(0, {.activation_dtype = DType::kF16, .deterministic = deterministic});
    for (const DType type :
         {DType::kF32, DType::kBF16, DType::kF16, DType::kQ4_0, DType::kQ5_1, DType::kQ8_0, DType::kQ4_K, DType::kQ6_K}) {
      std::vector<std::byte> file = quantize(type, values);
      const TensorView from(file.data(), type, {kRows, kColumns});
      const bool packable = type == DType::kQ4_0 || type == DType::kQ8_0 || type == DType::kQ4_K;
      EXPECT_EQ(backend.matrix_form(from, MatrixUse::kLookup).dtype, DType::kF16);
      EXPECT_EQ(backend.matrix_form(from, MatrixUse::kProduct).dtype, packable && !deterministic ? type : DType::kF16)
          << to_string(type);
      const DeviceBuffer memory = backend.allocate(kRows * kColumns * 2);
      const TensorView to = view(memory, DType::kF16, {kRows, kColumns});
      backend.upload_matrix(to, from);
      std::vector<float> expected = dequantize(type, file);
      for (float& value : expected) value = half_to_float(float_to_half(value));
      EXPECT_TRUE(testing::same_bits(downloaded(backend, to), expected)) << to_string(type);
    }
  }
}

// x [R, K] times a packed weight, by the kernel for few rows and by pieces of floats for many.
TEST(CudaBackendTest, MultipliesPackedWeightsByFewAndByManyRows) {
  constexpr std::int64_t kOuter = 80, kInner = 128, kMany = 12;
  std::vector<std::byte> file = quantize(DType::kQ4_0, noises(kOuter * kInner, 2, 0.1f));
  const std::vector<float> weight = dequantize(DType::kQ4_0, file);
  std::vector<std::uint16_t> x, bias;
  for (const float value : noises(kMany * kInner, 3)) x.push_back(float_to_bfloat16(value));
  for (const float value : noises(kOuter, 4)) bias.push_back(float_to_bfloat16(value));
  // 16 rows of the weight at a time, 48, and all.
  for (const std::size_t unpacked_bytes : {16 * kInner * 2, 60 * kInner * 2, std::int64_t{1} << 20}) {
    CudaBackend backend(0, {.deterministic = false}, unpacked_bytes);
    const TensorView from(file.data(), DType::kQ4_0, {kOuter, kInner});
    ASSERT_EQ(backend.matrix_form(from, MatrixUse::kProduct).dtype, DType::kQ4_0);
    const DeviceBuffer packed = backend.allocate(file.size()), input = backend.allocate(x.size() * 2);
    const DeviceBuffer device_bias = backend.allocate(bias.size() * 2), output = backend.allocate(kMany * kOuter * 2);
    const TensorView held = view(packed, DType::kQ4_0, {kOuter, kInner});
    backend.upload_matrix(held, from);
    backend.upload(input.data(), x.data(), x.size() * 2);
    backend.upload(device_bias.data(), bias.data(), bias.size() * 2);
    for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{8}, kMany}) {
      const TensorView out = view(output, DType::kBF16, {rows, kOuter});
      backend.matmul({.x = view(input, DType::kBF16, {rows, kInner}),
                      .num_projections = 1,
                      .projections = {{held, view(device_bias, DType::kBF16, {kOuter}), out}}});
      const std::vector<float> got = downloaded(backend, out);
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t m = 0; m < kOuter; ++m) {
          double expected = bfloat16_to_float(bias[m]);
          for (std::int64_t k = 0; k < kInner; ++k)
            expected += double{bfloat16_to_float(x[r * kInner + k])} * weight[m * kInner + k];
          ASSERT_NEAR(got[r * kOuter + m], expected, 0.02 + 0.01 * std::abs(expected)) << rows << " rows: " << r << ", " << m;
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire::test
