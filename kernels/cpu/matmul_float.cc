// Float weights: activations stay float. Sixteen lanes, lane l sums the products of k = l mod 16 in ascending k with fma; the
// lanes are summed by the tree of simd.h. See docs/numerics.md, "Products with float weights".
#include "kernels/cpu/matmul_tile.h"
#include "kernels/cpu/simd.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

struct WeightsF32 {
  using Element = float;
  static F32x16 load(const float* p) { return F32x16::load(p); }
};
struct WeightsF16 {
  using Element = std::uint16_t;
  static F32x16 load(const std::uint16_t* p) { return F32x16::load_f16(p); }
};
struct WeightsBF16 {
  using Element = std::uint16_t;
  static F32x16 load(const std::uint16_t* p) { return F32x16::load_bf16(p); }
};

// Weights and activations from k on, filled up with zeros.
template <typename Element>
struct Padded {
  Element values[kLanes] = {};
  Padded(const Element* p, std::int64_t count) { __builtin_memcpy(values, p, static_cast<std::size_t>(count) * sizeof(Element)); }
};

constexpr int kMostWeights = 4;
constexpr int kMostRows = 4;
constexpr int kCacheLine = 64;
// The tile that fills the registers: with two vectors to a F32x16 six sums, else sixteen.
constexpr int kWeightsAtOnce = QUIRE_ISA_AVX512 ? 4 : 2;
constexpr int kRowsAtOnce = QUIRE_ISA_AVX512 ? 4 : 3;

// A row of weights, and where the row lies that takes its place in the next tile.
template <typename Element>
[[gnu::always_inline]] inline void prefetch_next(const Element* row, std::int64_t stride_bytes, int num_weights, std::int64_t k) {
  constexpr std::int64_t kPerLine = kCacheLine / static_cast<std::int64_t>(sizeof(Element));
  if (k % kPerLine == 0) __builtin_prefetch(reinterpret_cast<const std::uint8_t*>(row + k) + num_weights * stride_bytes);
}

// kWeights rows of weights from row i on, times kRows rows of activations from row r on. Weights may lie unaligned in the file:
// they are only read through vector loads and memcpy.
template <typename Weights, int kWeights, int kRows>
void multiply(const Tile& t, int i, int r) {
  using Element = typename Weights::Element;
  const Element* w[kMostWeights];
  const float* x[kMostRows];
  F32x16 sum[kMostWeights][kMostRows];
  for (int a = 0; a < kWeights; ++a) w[a] = reinterpret_cast<const Element*>(t.weights + (i + a) * t.weight_stride);
  for (int b = 0; b < kRows; ++b) x[b] = t.x + (r + b) * t.x_stride;
  for (int a = 0; a < kWeights; ++a)
    for (int b = 0; b < kRows; ++b) sum[a][b] = F32x16::zero();
  std::int64_t k = 0;
  for (; k + kLanes <= t.inner; k += kLanes) {
    for (int a = 0; a < kWeights; ++a) {
      const F32x16 weights = Weights::load(w[a] + k);
      if constexpr (kRows == 1) prefetch_next(w[a], t.weight_stride, kWeights, k);
      for (int b = 0; b < kRows; ++b) sum[a][b] = fma(weights, F32x16::load(x[b] + k), sum[a][b]);
    }
  }
  if (k < t.inner) {
    for (int a = 0; a < kWeights; ++a) {
      const F32x16 weights = Weights::load(Padded<Element>(w[a] + k, t.inner - k).values);
      for (int b = 0; b < kRows; ++b) {
        sum[a][b] = fma(weights, F32x16::load(Padded<float>(x[b] + k, t.inner - k).values), sum[a][b]);
      }
    }
  }
  for (int a = 0; a < kWeights; ++a) {
    float dots[kMostRows];
    if constexpr (kRows == 4) {
      reduce_add4(sum[a], dots);
    } else {
      for (int b = 0; b < kRows; ++b) dots[b] = reduce_add(sum[a][b]);
    }
    for (int b = 0; b < kRows; ++b) {
      t.out[(r + b) * t.out_stride + i + a] = t.bias != nullptr ? dots[b] + t.bias[i + a] : dots[b];
    }
  }
}

// One row of activations: four rows of weights at a time hide the latency of fma. More: tiles, which reuse what they load.
template <typename Weights>
void multiply_tile(const Tile& t) {
  int i = 0;
  if (t.num_rows == 1) {
    for (; i + 4 <= t.num_weights; i += 4) multiply<Weights, 4, 1>(t, i, 0);
  } else {
    for (; i + kWeightsAtOnce <= t.num_weights; i += kWeightsAtOnce) {
      int r = 0;
      for (; r + kRowsAtOnce <= t.num_rows; r += kRowsAtOnce) multiply<Weights, kWeightsAtOnce, kRowsAtOnce>(t, i, r);
      for (; r < t.num_rows; ++r) multiply<Weights, kWeightsAtOnce, 1>(t, i, r);
    }
  }
  for (; i < t.num_weights; ++i)
    for (int r = 0; r < t.num_rows; ++r) multiply<Weights, 1, 1>(t, i, r);
}

}  // namespace

void multiply_float(DType weight_type, const Tile& tile) {
  switch (weight_type) {
    case DType::kF16:
      return multiply_tile<WeightsF16>(tile);
    case DType::kBF16:
      return multiply_tile<WeightsBF16>(tile);
    default:
      return multiply_tile<WeightsF32>(tile);
  }
}

}  // namespace quire::cpu::QUIRE_ISA
