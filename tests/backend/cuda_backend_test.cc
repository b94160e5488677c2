// The CUDA backend's memory and weights, on the emulator: transfers larger than what is staged at a time, and every way in which
// a file's matrix becomes a device's.
#include "backend/cuda/cuda_backend.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "core/float16.h"
#include "simt/device_memory.h"
#include "simt/runtime.h"
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

// A grid has at most 65,535 blocks along y, and 2^31 - 1 along x. Nothing of this runs.
TEST(CudaBackendTest, LaunchesNoMoreBlocksThanAGridHolds) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  constexpr std::int64_t kRows = 600'000, kInner = 64, kOuter = 16;
  constexpr auto kSparse = simt::DeviceMemory::Fill::kSparse;
  const simt::DeviceBuffer<std::uint16_t> x(kRows * kInner, kSparse), out(kRows * kOuter, kSparse);
  const simt::DeviceBuffer<std::uint8_t> weight(kOuter * kInner);
  const std::int64_t before = simt::runtime_counts().calls;
  cuda::matmul_quantized({.x = TensorView(x.data(), DType::kBF16, {kRows, kInner}),
                          .num_projections = 1,
                          .projections = {{TensorView(weight.data(), DType::kQ8_0, {kOuter, kInner}),
                                           {},
                                           TensorView(out.data(), DType::kBF16, {kRows, kOuter})}}},
                         stream);
  EXPECT_EQ(simt::runtime_counts().calls - before, 2);
  const TensorView endless(x.data(), DType::kBF16, {std::int64_t{1} << 33, 8});  // 2^32 is 0 in 32 bits
  EXPECT_ERROR(cuda::add({.residual = endless, .x = endless}, stream), ErrorCode::kUnsupported, "number of blocks is 8589934592");
  simt::break_device_after(0);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  simt::break_device_after(-1);
}

// Rows as the file has them are wanted while weights are uploaded, and no longer.
TEST(CudaBackendTest, GivesBackWhatOnlyLoadingNeeded) {
  constexpr std::int64_t kRows = 32, kColumns = 256;
  std::vector<std::byte> file = quantize(DType::kQ6_K, noises(kRows * kColumns, 1, 0.1f));
  CudaBackend backend(0, {});
  const DeviceBuffer memory = backend.allocate(kRows * kColumns * 2);
  backend.prepare({.max_tokens = 1, .max_logit_rows = 1, .vocab_size = 8});
  const simt::RuntimeObjects before = simt::runtime_objects();
  backend.upload_matrix(view(memory, DType::kBF16, {kRows, kColumns}), TensorView(file.data(), DType::kQ6_K, {kRows, kColumns}));
  EXPECT_EQ(simt::runtime_objects().device_buffers, before.device_buffers + 1);
  backend.prepare({.max_tokens = 1, .max_logit_rows = 1, .vocab_size = 8});
  EXPECT_EQ(simt::runtime_objects(), before);
}

// More rows and more of their parameters than are sampled at a time: pieces, with the bits of each row alone, in reserved memory.
TEST(CudaBackendTest, SamplesInPiecesWhatDoesNotFitAtOnce) {
  constexpr std::int64_t kRows = 6, kVocabulary = 100'000;  // of 1.6 MB a row: five fit in 8 MB
  std::vector<float> logits = noises(kRows * kVocabulary, 5, 3.0f);
  CudaBackend backend(0, {});
  const DeviceBuffer memory = backend.allocate(logits.size() * 4);
  backend.upload(memory.data(), logits.data(), logits.size() * 4);
  std::vector<TokenCount> counts(kVocabulary);
  std::vector<TokenBias> biases(kVocabulary);
  for (std::int32_t i = 0; i < kVocabulary; ++i) counts[i] = {i, i % 3}, biases[i] = {i, 0.001f * static_cast<float>(i % 7)};
  const std::vector<std::uint32_t> mask(kVocabulary / 32, 0xfffffffe);
  SampleRow row{.temperature = 0.0f,
                .repetition_penalty = 1.1f,
                .presence_penalty = 0.3f,
                .counts = counts.data(),
                .num_counts = static_cast<int>(kVocabulary),
                .biases = biases.data(),
                .num_biases = static_cast<int>(kVocabulary),
                .mask = mask.data()};
  std::vector<SampleRow> rows;
  for (std::int64_t r = 0; r < kRows; ++r) {
    row.seed = static_cast<std::uint64_t>(r);
    rows.push_back(row);
  }
  backend.prepare({.max_tokens = 1, .max_logit_rows = kRows, .vocab_size = kVocabulary});
  const simt::RuntimeCounts before = simt::runtime_counts();
  std::vector<SampleResult> together(kRows), alone(kRows);
  backend.sample({view(memory, DType::kF32, {kRows, kVocabulary}), rows.data(), together.data()});
  EXPECT_EQ(simt::runtime_counts().downloads - before.downloads, 2);
  for (const std::int64_t r : {std::int64_t{0}, kRows - 1}) {
    backend.sample({view(memory, DType::kF32, {kRows, kVocabulary}).rows(r, 1), &rows[r], &alone[r]});
    ASSERT_TRUE(alone[r].ok);
    ASSERT_EQ(std::memcmp(&alone[r], &together[r], sizeof(SampleResult)), 0) << "row " << r;
  }
  EXPECT_EQ(simt::runtime_counts().allocations - before.allocations, 0);
}

}  // namespace
}  // namespace quire::test
