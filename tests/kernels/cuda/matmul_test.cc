// The products of the CUDA backend: our calls of cuBLASLt (shapes, transposes, strides, epilogues) with a player of that library.
#include "kernels/cuda/matmul.h"

#include <gtest/gtest.h>

#include <cmath>

#include "simt/device_memory.h"
#include "simt/half.h"
#include "tests/support/cpu_variants.h"
#include "tests/support/expect_error.h"

namespace quire::test {
namespace {

using Bits = std::vector<std::uint16_t>;
using testing::noises;

struct Type {
  DType dtype;
  float tolerance;  // of an output rounded to it, relative
};

Bits narrow(const std::vector<float>& values, DType type) {
  Bits bits;
  for (const float value : values)
    bits.push_back(type == DType::kF16 ? simt::float_to_half(value) : simt::float_to_bfloat16(value));
  return bits;
}
float widen(std::uint16_t bits, DType type) {
  return type == DType::kF16 ? simt::half_to_float(bits) : simt::bfloat16_to_float(bits);
}

class CudaMatmul : public ::testing::TestWithParam<Type> {
 protected:
  DType type() const { return GetParam().dtype; }

  simt::DeviceBuffer<unsigned char> workspace_{cuda::Matmul::kWorkspaceBytes, simt::DeviceMemory::Fill::kSparse};
  cuda::Matmul matmul_{workspace_.data(), true};
};

TEST_P(CudaMatmul, MultipliesRowsOfTheFileWithBiasIntoPartsOfWiderRows) {
  constexpr std::int64_t kRows = 5, kInner = 24, kOuter = 19, kStride = 23;
  const Bits x = narrow(noises(kRows * kInner, 1), type());
  const Bits weight = narrow(noises(kOuter * kInner, 2), type());
  const Bits bias = narrow(noises(kOuter, 3), type());
  const simt::DeviceBuffer<std::uint16_t> dx(x), dw(weight), db(bias), out(std::size_t{kRows * kStride});
  TensorView strided(out.data(), type(), {kRows, kOuter});
  strided.outer_stride = kStride;
  matmul_({.x = TensorView(dx.data(), type(), {kRows, kInner}),
           .num_projections = 1,
           .projections = {{TensorView(dw.data(), type(), {kOuter, kInner}), TensorView(db.data(), type(), {kOuter}), strided}}},
          nullptr);
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t m = 0; m < kStride; ++m) {
      const std::uint16_t got = out[static_cast<std::size_t>(r * kStride + m)];
      if (m >= kOuter) {
        ASSERT_EQ(got, 0xffff) << "written beyond the row";
        continue;
      }
      double expected = widen(bias[m], type());
      for (std::int64_t k = 0; k < kInner; ++k) {
        expected += double{widen(x[r * kInner + k], type())} * widen(weight[m * kInner + k], type());
      }
      ASSERT_NEAR(widen(got, type()), expected, GetParam().tolerance * (std::abs(expected) + 0.1)) << r << ", " << m;
    }
  }
}

TEST_P(CudaMatmul, ARowDoesNotDependOnTheOthers) {
  constexpr std::int64_t kRows = 9, kInner = 40, kOuter = 16;
  const simt::DeviceBuffer<std::uint16_t> x(narrow(noises(kRows * kInner, 1), type()));
  const simt::DeviceBuffer<std::uint16_t> weight(narrow(noises(kOuter * kInner, 2), type()));
  const auto run = [&](std::int64_t first, std::int64_t count) {
    const simt::DeviceBuffer<float> out(static_cast<std::size_t>(count * kOuter));
    matmul_({.x = TensorView(x.data() + first * kInner, type(), {count, kInner}),
             .num_projections = 1,
             .projections = {{TensorView(weight.data(), type(), {kOuter, kInner}),
                              {},
                              TensorView(out.data(), DType::kF32, {count, kOuter})}}},
            nullptr);
    return out.to_host();
  };
  const std::vector<float> all = run(0, kRows);
  for (std::int64_t first = 0; first < kRows; ++first) {
    for (std::int64_t count = 1; first + count <= kRows; ++count) {
      const auto begin = all.begin() + first * kOuter;
      ASSERT_TRUE(testing::same_bits(run(first, count), std::vector<float>(begin, begin + count * kOuter)));
    }
  }
}

TEST_P(CudaMatmul, RefusesByName) {
  const simt::DeviceBuffer<float> memory(64);
  const auto view = [&](DType dtype, std::initializer_list<std::int64_t> dims) { return TensorView(memory.data(), dtype, dims); };
  const auto run = [&](const TensorView& x, const Projection& projection) {
    matmul_({.x = x, .num_projections = 1, .projections = {projection}}, nullptr);
  };
  const TensorView x = view(type(), {2, 8}), weight = view(type(), {4, 8}), out = view(type(), {2, 4});
  EXPECT_ERROR(run(view(DType::kF32, {2, 8}), {weight, {}, out}), ErrorCode::kInvalidArgument, "matmul: x is F32 [2, 8]");
  EXPECT_ERROR(run(x, {view(type(), {4, 7}), {}, out}), ErrorCode::kInvalidArgument, "matmul: weight is");
  EXPECT_ERROR(run(x, {view(DType::kQ8_0, {1, 32}), {}, out}), ErrorCode::kInvalidArgument, "matmul: weight is Q8_0");
  EXPECT_ERROR(run(x, {weight, {}, view(type(), {3, 4})}), ErrorCode::kInvalidArgument, "matmul: out is");
  EXPECT_ERROR(run(x, {weight, view(DType::kF32, {4}), out}), ErrorCode::kInvalidArgument, "matmul: bias is F32 [4]");
}

INSTANTIATE_TEST_SUITE_P(Types, CudaMatmul, ::testing::Values(Type{DType::kBF16, 1.0f / 128}, Type{DType::kF16, 1.0f / 1024}),
                         [](const auto& param) { return std::string(to_string(param.param.dtype)); });

}  // namespace
}  // namespace quire::test
