// Float weights: activations stay float. Sixteen lanes, lane l sums the products of k = l mod 16 in ascending k with fma; the
// lanes are summed by the tree of simd.h. See docs/numerics.md, "Products with float weights".
#include "kernels/cpu/matmul_tile.h"
#include "kernels/cpu/simd.h"
#if QUIRE_ISA_AVX2
#include "kernels/cpu/float_dots.h"
#endif

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

constexpr int kCacheLine = 64;
// The tile that fills the registers: with two vectors to a F32x16 six sums, else sixteen.
constexpr int kWeightsAtOnce = QUIRE_ISA_AVX512 ? 4 : 2;
constexpr int kRowsAtOnce = QUIRE_ISA_AVX512 ? 4 : 3;
constexpr int kMost = 4;  // rows of weights, rows of activations

using Sums = F32x16[kMost][kMost];  // [row of activations][row of weights]

// Adds the products of sixteen k. weights(a): those of row a.
template <int kWeights, int kRows, typename LoadWeights, typename LoadRow>
[[gnu::always_inline]] inline void add_products(Sums& sums, const LoadWeights& weights, const LoadRow& row) {
  F32x16 w[kMost];
  for (int a = 0; a < kWeights; ++a) w[a] = weights(a);
  for (int b = 0; b < kRows; ++b) {
    const F32x16 x = row(b);
    for (int a = 0; a < kWeights; ++a) sums[b][a] = fma(w[a], x, sums[b][a]);
  }
}

// Results of weights from i on and rows from r on.
template <int kWeights, int kRows>
[[gnu::always_inline]] inline void store(const Tile& t, int i, int r, const Sums& sums) {
  for (int b = 0; b < kRows; ++b) {
    float dots[kMost];
    if constexpr (kWeights == 4) {
      reduce_add4(sums[b], dots);
    } else {
      for (int a = 0; a < kWeights; ++a) dots[a] = reduce_add(sums[b][a]);
    }
    float* const out = t.out + (r + b) * t.out_stride + i;
    for (int a = 0; a < kWeights; ++a) out[a] = t.bias != nullptr ? dots[a] + t.bias[i + a] : dots[a];
  }
}

// How far ahead the weights are asked for: whole tiles of num_weights rows, for their rows are read side by side.
std::int64_t prefetch_distance(const Tile& t, int num_weights) {
  constexpr std::int64_t kPrefetchBytes = 8192;                       // at least
  const std::int64_t tile_bytes = num_weights * t.weight_stride + 1;  // above 0
  return (kPrefetchBytes / tile_bytes + 1) * (tile_bytes - 1);
}

// The line that lies `distance` bytes behind `row + k`, if k begins a line; into the second cache, which takes more requests at a
// time than the first.
template <typename Element>
[[gnu::always_inline]] inline void prefetch_line(const Element* row, std::int64_t k, std::int64_t distance) {
  constexpr std::int64_t kPerLine = kCacheLine / static_cast<std::int64_t>(sizeof(Element));
  if (k % kPerLine == 0) __builtin_prefetch(reinterpret_cast<const std::uint8_t*>(row + k) + distance, 0, 2);
}

// Few rows of activations: all kRows of the tile, times kWeights rows of weights from i on, widened as they are read. Weights may
// lie unaligned in the file: they are only read through vector loads and memcpy.
template <typename Weights, int kWeights, int kRows>
void multiply_few_rows(const Tile& t, int i) {
  using Element = typename Weights::Element;
  const Element* w[kMost];
  for (int a = 0; a < kWeights; ++a) w[a] = reinterpret_cast<const Element*>(t.weights + (i + a) * t.weight_stride);
  Sums sums;
  for (int b = 0; b < kRows; ++b)
    for (int a = 0; a < kWeights; ++a) sums[b][a] = F32x16::zero();
  const std::int64_t distance = prefetch_distance(t, kWeights);
  std::int64_t k = 0;
  for (; k + kLanes <= t.inner; k += kLanes) {
    for (int a = 0; a < kWeights; ++a) prefetch_line(w[a], k, distance);
    add_products<kWeights, kRows>(
        sums, [&](int a) { return Weights::load(w[a] + k); }, [&](int b) { return F32x16::load(t.x + b * t.x_stride + k); });
  }
  if (k < t.inner) {
    add_products<kWeights, kRows>(
        sums, [&](int a) { return Weights::load(Padded<Element>(w[a] + k, t.inner - k).values); },
        [&](int b) { return F32x16::load(Padded<float>(t.x + b * t.x_stride + k, t.inner - k).values); });
  }
  store<kWeights, kRows>(t, i, 0, sums);
}

#if QUIRE_ISA_AVX2

constexpr std::int64_t kChunk = 1024;  // weights of a row that are widened at a time: those of a tile take half of an L1 cache

// Weights [begin, begin + kChunk) of some rows, as floats, with zeros up to a multiple of sixteen.
struct Widened {
  alignas(kCacheLine) float values[kMost][kChunk];
  std::int64_t begin;

  template <typename Weights>
  void fill(const Tile& t, int i, int num_weights) {
    using Element = typename Weights::Element;
    const std::int64_t distance = prefetch_distance(t, num_weights);
    const std::int64_t end = begin + kChunk < t.inner ? begin + kChunk : t.inner;
    for (int a = 0; a < num_weights; ++a) {
      const auto* const row = reinterpret_cast<const Element*>(t.weights + (i + a) * t.weight_stride);
      std::int64_t k = begin;
      for (; k + kLanes <= end; k += kLanes) {
        prefetch_line(row, k, distance);
        Weights::load(row + k).store(values[a] + k - begin);
      }
      if (k < end) Weights::load(Padded<Element>(row + k, end - k).values).store(values[a] + k - begin);
    }
  }
};

// Sums of rows from r on over the chunk; between chunks they wait in `partial` [kRows].
template <int kWeights, int kRows>
void accumulate_chunk(const Tile& t, int i, int r, const Widened& w, LaneSums& partial) {
  LaneSums sums;
  const bool first = w.begin == 0;
  for (int b = 0; b < kRows; ++b)
    for (int a = 0; a < kWeights; ++a)
      for (int v = 0; v < kDotVectors; ++v) sums[b][a][v] = first ? set_floats(0.0f) : partial[b][a][v];
  const float* const x = t.x + r * t.x_stride + w.begin;
  const std::int64_t left = t.inner - w.begin, count = left < kChunk ? left : kChunk;
  std::int64_t k = 0;
  for (; k + kLanes <= count; k += kLanes) add_dots<kWeights, kRows>(w.values[0] + k, kChunk, x + k, t.x_stride, sums);
  if (k < count) {
    float rows[kMost][kLanes] = {};
    for (int b = 0; b < kRows; ++b)
      for (std::int64_t j = 0; k + j < count; ++j) rows[b][j] = x[b * t.x_stride + k + j];
    add_dots<kWeights, kRows>(w.values[0] + k, kChunk, rows[0], kLanes, sums);
  }
  if (left > kChunk) {
    __builtin_memcpy(partial, sums, sizeof sums);
    return;
  }
  Sums results;
  for (int b = 0; b < kRows; ++b)
    for (int a = 0; a < kWeights; ++a) results[b][a] = joined(sums[b][a]);
  store<kWeights, kRows>(t, i, r, results);
}

// The same of up to kRowsAtOnce rows.
template <int kWeights>
void accumulate_rows(const Tile& t, int i, int r, const Widened& w, LaneSums& partial) {
  const int num_rows = t.num_rows - r;
  if (num_rows == 1) return accumulate_chunk<kWeights, 1>(t, i, r, w, partial);
  if (num_rows == 2) return accumulate_chunk<kWeights, 2>(t, i, r, w, partial);
  if (num_rows == 3) return accumulate_chunk<kWeights, 3>(t, i, r, w, partial);
  accumulate_chunk<kWeights, kRowsAtOnce>(t, i, r, w, partial);
}

// Many rows of activations: weights are widened once, into the L1 cache, and used for all rows.
template <typename Weights, int kWeights>
void multiply_many_rows(const Tile& t, int i) {
  Widened w;
  LaneSums partial[kFloatTileRows / kRowsAtOnce + 1];
  for (w.begin = 0; w.begin == 0 || w.begin < t.inner; w.begin += kChunk) {
    w.fill<Weights>(t, i, kWeights);
    for (int r = 0; r < t.num_rows; r += kRowsAtOnce) {
      accumulate_rows<kWeights>(t, i, r, w, partial[r / kRowsAtOnce]);
    }
  }
}

#else

template <typename Weights, int kWeights>
void multiply_many_rows(const Tile& tile, int i) {
  Tile t = tile;
  for (int r = 0; r < tile.num_rows; r += t.num_rows) {
    t.x = tile.x + r * tile.x_stride;
    t.out = tile.out + r * tile.out_stride;
    t.num_rows = tile.num_rows - r >= kRowsAtOnce ? kRowsAtOnce : 1;
    t.num_rows == 1 ? multiply_few_rows<Weights, kWeights, 1>(t, i) : multiply_few_rows<Weights, kWeights, kRowsAtOnce>(t, i);
  }
}

#endif

// kWeights rows of weights from i on; one row of activations takes more of them, which hide the latency of fma.
template <typename Weights, int kWeights>
void multiply_rows(const Tile& t, int i) {
  if (t.num_rows == 2) return multiply_few_rows<Weights, kWeights, 2>(t, i);
  if (t.num_rows == 3) return multiply_few_rows<Weights, kWeights, 3>(t, i);
  if constexpr (kRowsAtOnce == 4) {
    if (t.num_rows == 4) return multiply_few_rows<Weights, kWeights, 4>(t, i);
  }
  multiply_many_rows<Weights, kWeights>(t, i);
}

template <typename Weights>
void multiply_tile(const Tile& t) {
  int i = 0;
  if (t.num_rows == 1) {
    for (; i + 4 <= t.num_weights; i += 4) multiply_few_rows<Weights, 4, 1>(t, i);
    for (; i < t.num_weights; ++i) multiply_few_rows<Weights, 1, 1>(t, i);
  } else {
    for (; i + kWeightsAtOnce <= t.num_weights; i += kWeightsAtOnce) multiply_rows<Weights, kWeightsAtOnce>(t, i);
    for (; i < t.num_weights; ++i) multiply_rows<Weights, 1>(t, i);
  }
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
