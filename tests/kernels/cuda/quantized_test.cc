// Quantised weights: dequantised at load with the bits of src/model/dequantize.cc, and multiplied as they are.
#include <cmath>
#include <random>

#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/device_tensor.h"
#include "tests/kernels/weight_formats.h"

namespace quire::testing {
namespace {

std::vector<std::byte> blocks_of(DType type, std::int64_t elements, unsigned seed) {
  std::mt19937 random(seed);
  return test::random_weights(type, elements, random);
}

std::vector<float> dequantized(DType type, const std::vector<std::byte>& blocks, std::int64_t elements) {
  std::vector<float> values(static_cast<std::size_t>(elements));
  dequantize_row(type, blocks.data(), values.data(), elements);
  return values;
}

class CudaDequantize : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, CudaDequantize, ::testing::ValuesIn(test::kWeightTypes + 3, std::end(test::kWeightTypes)),
                         type_name);

TEST_P(CudaDequantize, HasTheBitsOfTheHost) {
  constexpr std::int64_t kRows = 13, kWidth = 2304;  // more threads than chunks
  const std::vector<std::byte> blocks = blocks_of(GetParam(), kRows * kWidth, 7);
  const DeviceTensor from(GetParam(), {kRows, kWidth}, blocks);
  for (const DType type : kActivationTypes) {
    const std::vector<std::uint8_t> got = in_every_schedule([&] {
      const DeviceTensor to(type, {kRows, kWidth});
      cuda::dequantize(from, to, nullptr);
      return to.bytes();
    });
    EXPECT_EQ(got, DeviceTensor(type, {kRows, kWidth}, dequantized(GetParam(), blocks, kRows * kWidth)).bytes());
  }
}

// out [R, M] of x [R, K] and `blocks` [M, K].
struct Product {
  DType type;          // of the weights
  DType activation;    // of x
  std::int64_t outer;  // M
  std::int64_t inner;  // K
  DType out_type = DType::kF32;

  std::vector<std::byte> blocks() const { return blocks_of(type, outer * inner, static_cast<unsigned>(outer + inner)); }

  DeviceTensor packed() const {
    const DeviceTensor from(type, {outer, inner}, blocks());
    DeviceTensor to(type, {outer, inner});
    cuda::pack_weight(from, to, nullptr);
    return to;
  }
  std::vector<float> run(const std::vector<float>& x, const TensorView& bias = {}) const {
    const std::int64_t rows = static_cast<std::int64_t>(x.size()) / inner;
    const DeviceTensor in(activation, {rows, inner}, x), out(out_type, {rows, outer});
    const DeviceTensor weight = packed();
    cuda::matmul_quantized({.x = in, .num_projections = 1, .projections = {{weight, bias, out}}}, nullptr);
    return out.floats();
  }
};

class CudaMatmulQuantized : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, CudaMatmulQuantized, ::testing::Values(DType::kQ4_0, DType::kQ4_1, DType::kQ4_K, DType::kQ8_0),
                         type_name);

TEST_P(CudaMatmulQuantized, EveryWeightArrivesExactlyWhereItBelongs) {  // x: the rows of the identity
  for (const DType activation : kActivationTypes) {
    const std::int64_t inner = GetParam() == DType::kQ4_K ? 512 : 192;
    const Product product{GetParam(), activation, 32, inner};
    std::vector<float> x(static_cast<std::size_t>(inner * inner), 0.0f);
    for (std::int64_t k = 0; k < inner; ++k) x[k * inner + k] = 1.0f;
    const std::vector<float> weights = dequantized(GetParam(), product.blocks(), 32 * inner), out = product.run(x);
    for (std::int64_t m = 0; m < 32; ++m) {
      for (std::int64_t k = 0; k < inner; ++k) ASSERT_EQ(out[k * 32 + m], weights[m * inner + k]) << m << ", " << k;
    }
  }
}

TEST_P(CudaMatmulQuantized, UnpackingIsDequantising) {
  for (const DType type : kActivationTypes) {
    const Product product{GetParam(), type, 48, 768};
    const DeviceTensor from(GetParam(), {48, 768}, product.blocks()), unpacked(type, {48, 768}), direct(type, {48, 768});
    cuda::unpack_weight(product.packed(), unpacked, nullptr);
    cuda::dequantize(from, direct, nullptr);
    EXPECT_EQ(unpacked.bytes(), direct.bytes());
  }
}

TEST_P(CudaMatmulQuantized, IsNearDoublePrecision) {
  for (const DType activation : kActivationTypes) {
    for (const std::int64_t inner : {256, 576, 640, 2304}) {
      if (inner % block_elements(GetParam()) != 0) continue;
      const Product product{GetParam(), activation, 48, inner};
      const std::vector<float> x = rounded(activation, noises(3 * inner, inner));
      const std::vector<float> out = product.run(x);
      const std::vector<std::byte> blocks = product.blocks();
      for (int r = 0; r < 3; ++r) {
        for (std::int64_t m = 0; m < 48; ++m) {
          double sum = 0.0, magnitude = 0.0;
          for (std::int64_t k = 0; k < inner; ++k) {
            const std::byte* row = blocks.data() + m * row_bytes(GetParam(), inner);
            const double term = test::weight_value(GetParam(), row, k) * double{x[r * inner + k]};
            sum += term;
            magnitude += std::abs(term);
          }
          ASSERT_NEAR(out[r * 48 + m], sum, 4e-7 * magnitude) << inner << ": " << r << ", " << m;
        }
      }
    }
  }
}

TEST_P(CudaMatmulQuantized, ARowsBitsAreItsOwnInEverySchedule) {
  const Product product{GetParam(), DType::kBF16, 32, 1280, DType::kBF16};
  const std::vector<float> x = noises(9 * 1280, 3);
  const std::vector<float> all = in_every_schedule([&] { return product.run(x); });
  for (int rows = 1; rows <= 9; ++rows) {
    const std::vector<float> some = product.run({x.end() - rows * 1280, x.end()});
    EXPECT_TRUE(same_bits(some, {all.end() - rows * 32, all.end()})) << rows;
  }
  std::vector<float> spoilt = x;
  spoilt[4 * 1280 + 77] = NAN;
  const std::vector<float> out = product.run(spoilt);
  for (int i = 0; i < 9 * 32; ++i) {
    if (i / 32 == 4) {
      EXPECT_TRUE(std::isnan(out[i]));
    } else {
      EXPECT_EQ(out[i], all[i]);
    }
  }
}

TEST_P(CudaMatmulQuantized, ReadsTheWeightsOnceForEightRows) {
  if (!simt::has_statistics()) GTEST_SKIP() << "nothing is counted here";
  constexpr std::int64_t kOuter = 32, kInner = 1024;
  const Product product{GetParam(), DType::kBF16, kOuter, kInner};
  const DeviceTensor weight = product.packed(), out(DType::kF32, {8, kOuter});
  const DeviceTensor x(DType::kBF16, {8, kInner}, noises(8 * kInner, 3));
  simt::Options counting = simt::options();
  counting.count_traffic = true;
  const simt::ScopedOptions scope(counting);
  const std::int64_t bytes = weight.view().num_bytes(), bits = GetParam() == DType::kQ8_0 ? 8 : 4;
  const simt::ReadWatch watch(weight.view().data, static_cast<std::size_t>(bytes));
  (void)simt::take_statistics();
  cuda::matmul_quantized({.x = x, .num_projections = 1, .projections = {{weight, {}, out}}}, nullptr);
  const std::int64_t group_bytes = bytes / (kOuter / 16), integer_bytes = 16 * kInner * bits / 8;
  for (std::int64_t i = 0; i < bytes; ++i) {
    if (i % group_bytes < integer_bytes) {
      ASSERT_EQ(watch.num_reads()[i], 1) << i;
    } else {
      ASSERT_GE(watch.num_reads()[i], 1) << i;  // scales: by the lanes that share them, in one request
    }
  }
  const simt::Statistics seen = simt::take_statistics();
  const std::int64_t x_bytes = 2 * 8 * kInner * (kOuter / 16);
  // Q4_K: the pairs (d, dmin) are read for each of four tiles, and the halves of sectors with 16 bits a row for either of two.
  const std::int64_t again = GetParam() == DType::kQ4_K ? (3 * 64 + 4 * 16) * (kInner / 256) * (kOuter / 16) : 0;
  EXPECT_EQ(seen.global_loads.num_sectors * 32, bytes + x_bytes + again);
  if (simt::has_hooks()) {
    EXPECT_EQ(seen.shared_stores.num_phases, seen.shared_stores.num_ideal_phases);
  }
}

TEST_P(CudaMatmulQuantized, WritesEachResultOnce) {  // a block too much would be overwritten by the right one
  if (!simt::has_hooks()) GTEST_SKIP() << "only hooks see these stores";
  const Product product{GetParam(), DType::kBF16, 32, 256};
  const DeviceTensor weight = product.packed(), x(DType::kBF16, {9, 256}, noises(9 * 256, 3)), out(DType::kF32, {9, 32});
  const simt::ScopedOptions scope({.count_traffic = true});
  (void)simt::take_statistics();
  cuda::matmul_quantized({.x = x, .num_projections = 1, .projections = {{weight, {}, out}}}, nullptr);
  EXPECT_EQ(simt::take_statistics().global_stores.num_bytes, 9 * 32 * 4);
}

TEST_P(CudaMatmulQuantized, BiasOutTypesStridesAndRowsOfAMatrix) {
  const Product product{GetParam(), DType::kF16, 48, 256};
  const std::vector<float> x = noises(2 * 256, 3), bias_values = noises(48, 4);
  const DeviceTensor bias(DType::kF16, {48}, bias_values);
  const std::vector<float> bias_floats = rounded(DType::kF16, bias_values);
  const std::vector<float> plain = product.run(x), biased = product.run(x, bias);
  for (int i = 0; i < 96; ++i) EXPECT_EQ(biased[i], plain[i] + bias_floats[i % 48]);
  Product narrow = product;
  narrow.out_type = DType::kF16;
  EXPECT_TRUE(same_bits(narrow.run(x, bias), rounded(DType::kF16, biased)));
  // The last 32 rows of the matrix, in a column block of a wider result; x at odd addresses.
  const DeviceTensor weight = product.packed(), wide(DType::kF32, {2, 40}, std::vector<float>(80, -7.0f));
  const DeviceTensor memory(DType::kF16, {2, 257});
  TensorView in = memory, out = wide;
  in.shape[1] = 256;
  out.shape[1] = 32;
  out.data = wide.view().as<float>() + 4;
  for (int i = 0; i < 512; ++i) in.row_as<std::uint16_t>(i / 256)[i % 256] = float_to_half(x[i]);
  cuda::matmul_quantized({.x = in, .num_projections = 1, .projections = {{weight.view().rows(16, 32), {}, out}}}, nullptr);
  const std::vector<float> got = wide.floats();
  for (int i = 0; i < 80; ++i) {
    const int column = i % 40 - 4;
    EXPECT_EQ(got[i], column >= 0 && column < 32 ? plain[i / 40 * 48 + 16 + column] : -7.0f) << i;
  }
}

TEST(CudaMatmulQuantizedProjections, MayDifferInType) {
  const DType types[] = {DType::kQ4_K, DType::kQ8_0, DType::kQ4_0};
  const std::vector<float> x = noises(2 * 256, 3);
  const DeviceTensor in(DType::kBF16, {2, 256}, x);
  std::vector<DeviceTensor> weights, outs;
  weights.reserve(3);
  outs.reserve(3);
  MatmulArgs args;
  args.x = in;
  args.num_projections = 3;
  for (int i = 0; i < 3; ++i) {
    weights.push_back(Product{types[i], DType::kBF16, 16 * (i + 1), 256}.packed());
    outs.emplace_back(DType::kF32, Dims{2, 16 * (i + 1)});
    args.projections[i] = {weights[i], {}, outs[i]};
  }
  cuda::matmul_quantized(args, nullptr);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(outs[i].floats(), Product{types[i], DType::kBF16, 16 * (i + 1), 256}.run(x)));
}

TEST(CudaQuantizedArguments, AreRefusedByName) {
  const DeviceTensor weight(DType::kQ4_0, {32, 64}), odd(DType::kQ4_0, {24, 64}), narrow(DType::kQ4_0, {32, 96});
  const DeviceTensor five(DType::kQ5_0, {32, 64}), x(DType::kBF16, {2, 64}), wide_x(DType::kBF16, {2, 128});
  const DeviceTensor f32(DType::kF32, {2, 64}), out(DType::kF32, {2, 32}), half(DType::kF16, {2, 32}), bias(DType::kF16, {31});
  const auto product = [](const TensorView& in, const TensorView& w, const TensorView& b, const TensorView& to) {
    cuda::matmul_quantized({.x = in, .num_projections = 1, .projections = {{w, b, to}}}, nullptr);
  };
  MatmulArgs many;
  many.x = x;
  many.num_projections = 4;
  EXPECT_ERROR(product(f32, weight, {}, out), ErrorCode::kInvalidArgument, "matmul_quantized: x is F32 [2, 64]");
  EXPECT_ERROR(product(x, odd, {}, out), ErrorCode::kInvalidArgument, "weight is Q4_0 [24, 64]");
  EXPECT_ERROR(product(x, five, {}, out), ErrorCode::kInvalidArgument, "weight is Q5_0 [32, 64]");
  EXPECT_ERROR(product(wide_x, weight, {}, out), ErrorCode::kInvalidArgument, "weight is Q4_0 [32, 64]");
  EXPECT_ERROR(product(x, weight, bias, out), ErrorCode::kInvalidArgument, "bias is F16 [31]");
  EXPECT_ERROR(product(x, weight, {}, half), ErrorCode::kInvalidArgument, "out is F16 [2, 32]");
  EXPECT_ERROR(cuda::pack_weight(narrow, narrow, nullptr), ErrorCode::kInvalidArgument, "pack_weight: from is Q4_0 [32, 96]");
  EXPECT_ERROR(cuda::pack_weight(weight, odd, nullptr), ErrorCode::kInvalidArgument, "to is Q4_0 [24, 64]");
  EXPECT_ERROR(cuda::unpack_weight(odd, x, nullptr), ErrorCode::kInvalidArgument, "unpack_weight: from is Q4_0 [24, 64]");
  EXPECT_ERROR(cuda::unpack_weight(weight, x, nullptr), ErrorCode::kInvalidArgument, "to is BF16 [2, 64]");
  EXPECT_ERROR(cuda::dequantize(x, x, nullptr), ErrorCode::kInvalidArgument, "dequantize: from is BF16 [2, 64]");
  EXPECT_ERROR(cuda::dequantize(weight, f32, nullptr), ErrorCode::kInvalidArgument, "to is F32 [2, 64]");
  EXPECT_ERROR(cuda::matmul_quantized(many, nullptr), ErrorCode::kUnsupported, "num_projections is 4");
}

}  // namespace
}  // namespace quire::testing
