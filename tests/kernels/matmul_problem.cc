#include "tests/kernels/matmul_problem.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/kernels/weight_formats.h"
#include "tests/support/cpu_variants.h"

namespace quire::test {
namespace {

constexpr float kUntouched = -12345.75f;
constexpr std::int64_t kGap = 3;  // elements between rows of x and of out

struct RoundedBlock {
  double d = 0.0;
  double q[32] = {};
};

RoundedBlock round_block(const float* x) {
  RoundedBlock block;
  float largest = 0.0f;
  for (int i = 0; i < 32; ++i) largest = std::max(largest, std::abs(x[i]));
  if (largest < 0x1p-100f) return block;
  const float inverse = 127.0f / largest;
  block.d = static_cast<double>(largest / 127.0f);
  for (int i = 0; i < 32; ++i) {
    const float scaled = x[i] * inverse;
    block.q[i] = std::nearbyint(static_cast<double>(scaled));
  }
  return block;
}

}  // namespace

MatmulProblem::MatmulProblem(DType type_in, std::int64_t outer_in, std::int64_t inner_in, std::int64_t rows_in, bool with_bias,
                             unsigned seed)
    : type(type_in), outer(outer_in), inner(inner_in), rows(rows_in) {
  std::mt19937 random(seed);
  weights = random_weights(type, outer * inner, random);
  std::normal_distribution<float> normal;
  x.resize(static_cast<std::size_t>(rows * inner));
  for (float& v : x) v = normal(random) * (random() % 50u == 0 ? 20.0f : 1.0f);  // a few outliers, as in models
  if (!with_bias) return;
  bias.resize(static_cast<std::size_t>(outer));
  for (float& v : bias) v = normal(random);
}

std::vector<float> MatmulProblem::run(const cpu::KernelTable& kernels, int threads) const {
  ThreadPool pool(threads);
  const std::size_t weight_bytes = panels ? static_cast<std::size_t>(cpu::packed_bytes(type, outer, inner)) : weights.size();
  const AlignedBuffer placed(weight_bytes + misalignment);
  std::byte* const weight = static_cast<std::byte*>(placed.data()) + misalignment;
  if (panels) {
    cpu::pack_panels(TensorView(const_cast<std::byte*>(weights.data()), type, {outer, inner}), weight, pool);
  } else {
    std::memcpy(weight, weights.data(), weights.size());
  }
  std::vector<float> spread(static_cast<std::size_t>(rows * (inner + kGap)), NAN);
  for (std::int64_t r = 0; r < rows; ++r) std::copy_n(x.begin() + r * inner, inner, spread.begin() + r * (inner + kGap));
  std::vector<float> out(static_cast<std::size_t>(rows * (outer + kGap)), kUntouched);
  const AlignedBuffer scratch(cpu::matmul_scratch_bytes(rows, inner, terms));

  MatmulArgs args;
  args.x = TensorView(spread.data(), DType::kF32, {rows, inner});
  args.x.outer_stride = inner + kGap;
  args.num_projections = 1;
  args.activation_terms = terms;
  Projection& projection = args.projections[0];
  projection.weight = TensorView(weight, type, {outer, inner});
  projection.weight.layout = panels ? Layout::kPanels : Layout::kRows;
  if (!bias.empty()) projection.bias = TensorView(const_cast<float*>(bias.data()), DType::kF32, {outer});
  projection.out = TensorView(out.data(), DType::kF32, {rows, outer});
  projection.out.outer_stride = outer + kGap;
  kernels.matmul(args, pool, scratch.data());

  std::vector<float> dense;
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto row = out.begin() + r * (outer + kGap);
    dense.insert(dense.end(), row, row + outer);
    EXPECT_EQ(std::count(row + outer, row + outer + kGap, kUntouched), kGap) << "written between rows";
  }
  return dense;
}

std::vector<float> MatmulProblem::run_row(const cpu::KernelTable& kernels, std::int64_t r) const {
  MatmulProblem single = *this;
  single.rows = 1;
  single.x.assign(x.begin() + r * inner, x.begin() + (r + 1) * inner);
  return single.run(kernels);
}

Expected expected(const MatmulProblem& p, std::int64_t r, std::int64_t m) {
  constexpr double kEpsilon = 0x1p-24;
  Expected e;
  double magnitude = 0.0;  // sum of the magnitudes of everything added
  double rounding = 0.0;   // most that rounding the activations can change
  const float* x = p.x.data() + r * p.inner;
  const std::byte* w = p.weight_row(m);
  for (std::int64_t k = 0; k < p.inner; k += 32) {
    const std::int64_t count = std::min<std::int64_t>(32, p.inner - k);
    RoundedBlock block;
    if (is_quantized(p.type)) block = round_block(x + k);
    for (std::int64_t i = 0; i < count; ++i) {
      const double weight = weight_value(p.type, w, k + i);
      const double exact = static_cast<double>(x[k + i]);
      const double used = is_quantized(p.type) ? block.d * block.q[i] : exact;
      e.value += weight * used;
      e.unrounded_value += weight * exact;
      // Formats with a minimum add d * q and m apart, each of magnitude up to about 4, and may cancel.
      magnitude += (std::abs(weight) + (is_quantized(p.type) ? 4.0 : 0.0)) * std::abs(used);
      rounding += std::abs(weight) * block.d * 0.5001;
    }
  }
  if (!p.bias.empty()) {
    const double bias = static_cast<double>(p.bias[static_cast<std::size_t>(m)]);
    e.value += bias;
    e.unrounded_value += bias;
    magnitude += std::abs(bias);
  }
  const double steps = static_cast<double>(p.inner) / 16.0 + 8.0;  // roundings in the longest chain
  e.bound = steps * kEpsilon * magnitude + 1e-30;
  e.unrounded_bound = e.bound + rounding;
  return e;
}

std::vector<const cpu::KernelTable*> all_kernels() {
  std::vector<const cpu::KernelTable*> tables;
  for (const char* name : {QUIRE_CPU_VARIANTS, QUIRE_CPU_MATMUL_VARIANTS}) {
    if (const cpu::KernelTable* table = testing::find_variant(name)) tables.push_back(table);
  }
  return tables;
}

}  // namespace quire::test
