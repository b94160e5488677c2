// What the tests of CUDA kernels share: tensors in guarded device memory, and runs in every schedule of the emulator.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/float16.h"
#include "model/dequantize.h"
#include "tests/support/cpu_variants.h"
#include "tests/support/expect_error.h"
#include "tests/support/simt/device_memory.h"
#include "tests/support/simt/emulator.h"

namespace quire::testing {

inline constexpr DType kActivationTypes[] = {DType::kBF16, DType::kF16};

inline std::string type_name(const ::testing::TestParamInfo<DType>& param) { return std::string(to_string(param.param)); }

using Dims = std::initializer_list<std::int64_t>;

// A tensor that ends where its memory ends. Floats are rounded to the type, to nearest even.
class DeviceTensor {
 public:
  DeviceTensor(DType dtype, Dims dims)
      : view_(nullptr, dtype, dims), memory_(std::make_unique<Memory>(static_cast<std::size_t>(view_.num_bytes()))) {
    view_.data = memory_->data();
  }
  DeviceTensor(DType dtype, Dims dims, const std::vector<float>& values) : DeviceTensor(dtype, dims) { fill(values); }
  DeviceTensor(Dims dims, const std::vector<std::int32_t>& values) : DeviceTensor(DType::kI32, dims) {
    std::memcpy(memory_->data(), values.data(), memory_->size());
  }
  DeviceTensor(Dims dims, const std::vector<std::int64_t>& values) : DeviceTensor(DType::kI64, dims) {
    std::memcpy(memory_->data(), values.data(), memory_->size());
  }
  DeviceTensor(DType dtype, Dims dims, const std::vector<std::byte>& blocks) : DeviceTensor(dtype, dims) {
    std::memcpy(memory_->data(), blocks.data(), memory_->size());
  }

  const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }  // NOLINT: a tensor is its view

  void fill(const std::vector<float>& values) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (view_.dtype == DType::kF32) {
        std::memcpy(memory_->data() + 4 * i, &values[i], 4);
      } else {
        const std::uint16_t bits = view_.dtype == DType::kF16 ? float_to_half(values[i]) : float_to_bfloat16(values[i]);
        std::memcpy(memory_->data() + 2 * i, &bits, 2);
      }
    }
  }
  std::vector<float> floats() const {
    std::vector<float> values(static_cast<std::size_t>(view_.num_elements()));
    dequantize_row(view_.dtype, memory_->data(), values.data(), view_.num_elements());
    return values;
  }
  std::vector<std::uint8_t> bytes() const { return memory_->to_host(); }

 private:
  using Memory = simt::DeviceBuffer<std::uint8_t>;
  TensorView view_;
  std::unique_ptr<Memory> memory_;
};

// What memory of `dtype` keeps of the values.
inline std::vector<float> rounded(DType dtype, std::vector<float> values) {
  for (float& x : values) {
    if (dtype == DType::kF16) x = half_to_float(float_to_half(x));
    if (dtype == DType::kBF16) x = bfloat16_to_float(float_to_bfloat16(x));
  }
  return values;
}

// Half a unit in the last place of `dtype`, relative.
inline double rounding(DType dtype) { return dtype == DType::kF32 ? 0x1p-24 : dtype == DType::kF16 ? 0x1p-11 : 0x1p-8; }

// The bytes that `run()` returns, the same in every schedule.
template <typename Run>
auto in_every_schedule(const Run& run) {
  const auto first = run();
  for (const simt::Options& options : simt::all_schedules()) {
    const simt::ScopedOptions scope(options);
    EXPECT_TRUE(run() == first) << options;
  }
  return first;
}

}  // namespace quire::testing
