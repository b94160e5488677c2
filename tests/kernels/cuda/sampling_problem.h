// Rows of logits, sampled by the CUDA kernel in the emulator and by the CPU's kernels.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/sample_rows.h"
#include "tests/kernels/cuda/device_tensor.h"

namespace quire::testing {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Logits = std::vector<std::vector<float>>;

inline std::vector<SampleResult> sample_on_device(const Logits& logits, const std::vector<SampleRow>& rows) {
  const auto vocabulary = static_cast<std::int64_t>(logits[0].size()), num_rows = static_cast<std::int64_t>(rows.size());
  std::vector<float> flat;
  for (const auto& row : logits) flat.insert(flat.end(), row.begin(), row.end());
  const DeviceTensor view(DType::kF32, {num_rows, vocabulary}, flat);
  std::vector<std::byte> packed;
  cuda::pack_sample_rows(rows.data(), num_rows, vocabulary, packed);
  const simt::DeviceBuffer<std::byte> device_rows(packed);
  const simt::DeviceBuffer<std::byte> scratch(cuda::sample_scratch_bytes(num_rows, vocabulary));
  const simt::DeviceBuffer<SampleResult> results(rows.size());
  cuda::sample({view, device_rows.data(), reinterpret_cast<float*>(scratch.data()), results.data()}, nullptr);
  EXPECT_TRUE(same_bits(view.floats(), flat)) << "the logits were changed";
  return results.to_host();
}

inline std::vector<SampleResult> sample_on_cpu(const Logits& logits, const std::vector<SampleRow>& rows) {
  std::vector<float> flat;
  for (const auto& row : logits) flat.insert(flat.end(), row.begin(), row.end());
  std::vector<SampleResult> results(rows.size());
  ThreadPool pool(1);
  const TensorView view(flat.data(), DType::kF32,
                        {static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(logits[0].size())});
  std::vector<double> scratch(cpu::sample_scratch_bytes(view.dim(1), 1) / sizeof(double));
  cpu::best_kernels().sample({view, rows.data(), results.data()}, pool, scratch.data());
  return results;
}

inline ::testing::AssertionResult same_result(const SampleResult& a, const SampleResult& b) {
  if (a.ok != b.ok || a.token != b.token)
    return ::testing::AssertionFailure() << "token " << a.token << (a.ok ? "" : " (not ok)") << " against " << b.token;
  const auto is_near = [](float x, float y) { return x == y || std::abs(x - y) <= 1e-6f * std::max(1.0f, std::abs(y)); };
  if (!is_near(a.logprob, b.logprob)) return ::testing::AssertionFailure() << "logprob " << a.logprob << ", " << b.logprob;
  for (int i = 0; i < SampleResult::kMaxTop; ++i) {
    if (a.top_tokens[i] != b.top_tokens[i] || !is_near(a.top_logprobs[i], b.top_logprobs[i]))
      return ::testing::AssertionFailure() << "alternative " << i << ": " << a.top_tokens[i] << ", " << b.top_tokens[i];
  }
  return ::testing::AssertionSuccess();
}

inline ::testing::AssertionResult equals_cpu(const Logits& logits, const std::vector<SampleRow>& rows) {
  const std::vector<SampleResult> device = sample_on_device(logits, rows), cpu = sample_on_cpu(logits, rows);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (const auto same = same_result(device[r], cpu[r]); !same)
      return ::testing::AssertionFailure() << "row " << r << ": " << same.message();
  }
  return ::testing::AssertionSuccess();
}

}  // namespace quire::testing
