// Quantised weights times 8-bit activations. One float chain per result, over the blocks of 32 in ascending order; the sums
// within a block are exact integers. See docs/numerics.md, "Products with quantised weights".
#include "kernels/cpu/matmul_tile.h"
#include "kernels/cpu/weight_block.h"
#if QUIRE_ISA_AVX2
#include "kernels/cpu/panel_avx2.h"
#endif

namespace quire::cpu::QUIRE_ISA {
namespace {

// ---- one row of weights at a time: the definition, and the rows that do not fill a panel ----

template <DType kType>
inline std::int32_t integer_dot(const WeightBlock& w, const ActivationBlock& x) {
  std::int32_t half[2];
  for (int h = 0; h < 2; ++h) {
    std::int32_t sum = 0;
    for (int i = 16 * h; i < 16 * h + 16; ++i) sum += w.q[i] * x.q[i];
    half[h] = sum;
  }
  if constexpr (has_half_scales(kType)) return w.half_scale[0] * half[0] + w.half_scale[1] * half[1];
  return half[0] + half[1];
}

template <DType kType>
void multiply_rows(const Tile& t) {
  const std::int64_t num_blocks = t.inner / kBlock;
  for (int i = 0; i < t.num_weights; ++i) {
    float sum[kTileRows] = {};
    for (std::int64_t b = 0; b < num_blocks; ++b) {
      WeightBlock w;
      unpack_block<kType>(t.weights + i * t.weight_stride, b, w);
      for (int r = 0; r < t.num_rows; ++r) {
        const ActivationBlock& x = t.blocks[r * num_blocks + b];
        sum[r] = fma(w.d * x.d, static_cast<float>(integer_dot<kType>(w, x)), sum[r]);
        if constexpr (has_minimum(kType)) sum[r] = fma(w.m, x.d_sum, sum[r]);
      }
    }
    for (int r = 0; r < t.num_rows; ++r) t.out[r * t.out_stride + i] = t.bias != nullptr ? sum[r] + t.bias[i] : sum[r];
  }
}

#if QUIRE_ISA_AVX2

// ---- eight rows of weights at a time ----

constexpr int kCacheLine = 64;
constexpr int kRowsAtOnce = 4;     // rows of activations that share a panel's loads
constexpr int kPanelsAtOnce = 32;  // panels unpacked for reuse: about 10 KB, so that they stay in the L1 cache

inline __m256i broadcast4(const void* p) {
  int v;
  __builtin_memcpy(&v, p, sizeof v);
  return _mm256_set1_epi32(v);
}

// The exact integer sums of a panel times the same block of kRows rows of activations. Products of unsigned weights are summed in
// 16 bits as long as they fit: 8 * 2 * 15 * 127, 4 * 2 * 31 * 127 and 2 * 2 * 63 * 127 are below 2^15.
template <DType kType, int kRows>
[[gnu::always_inline]] inline void integer_dots(const Panel& w, const ActivationBlock* const* x, __m256i* dots) {
  constexpr bool kFiveBits = kType == DType::kQ5_0 || kType == DType::kQ5_1 || kType == DType::kQ5_K;
  constexpr int kAdds = kType == DType::kQ8_0 ? 1 : has_half_scales(kType) ? 2 : kFiveBits ? 4 : 8;
  for (int first = 0; first < 8; first += kAdds) {
    __m256i sum16[kRowsAtOnce];
    for (int j = first; j < first + kAdds; ++j) {
      const __m256i magnitude = kType == DType::kQ8_0 ? _mm256_abs_epi8(w.q[j]) : w.q[j];  // -128 becomes an unsigned 128
      for (int r = 0; r < kRows; ++r) {
        __m256i q = broadcast4(x[r]->q + 4 * j);
        if constexpr (kType == DType::kQ8_0) q = _mm256_sign_epi8(q, w.q[j]);
        const __m256i products = _mm256_maddubs_epi16(magnitude, q);
        sum16[r] = j == first ? products : _mm256_add_epi16(sum16[r], products);
      }
    }
    const __m256i factor = has_half_scales(kType) ? w.scale[first / 4] : _mm256_set1_epi16(1);
    for (int r = 0; r < kRows; ++r) {
      const __m256i sum32 = _mm256_madd_epi16(sum16[r], factor);
      dots[r] = first == 0 ? sum32 : _mm256_add_epi32(dots[r], sum32);
    }
  }
  if constexpr (panel_offset(kType) != 0) {
    __m256i offset = _mm256_set1_epi16(panel_offset(kType));
    if constexpr (has_half_scales(kType)) offset = _mm256_slli_epi16(_mm256_blend_epi16(w.scale[0], w.scale[1], 0xaa), 5);
    for (int r = 0; r < kRows; ++r) {
      dots[r] = _mm256_sub_epi32(dots[r], _mm256_madd_epi16(offset, broadcast4(x[r]->half_sum)));
    }
  }
}

template <DType kType, int kRows>
[[gnu::always_inline]] inline void accumulate(const Panel& w, const ActivationBlock* const* x, __m256* sum) {
  __m256i dots[kRowsAtOnce];
  integer_dots<kType, kRows>(w, x, dots);
  for (int r = 0; r < kRows; ++r) {
    sum[r] = _mm256_fmadd_ps(_mm256_mul_ps(w.d, _mm256_set1_ps(x[r]->d)), _mm256_cvtepi32_ps(dots[r]), sum[r]);
    if constexpr (has_minimum(kType)) sum[r] = _mm256_fmadd_ps(w.m, _mm256_set1_ps(x[r]->d_sum), sum[r]);
  }
}

inline void store(const Tile& t, int r, __m256 sum, bool complete) {
  if (complete && t.bias != nullptr) sum = _mm256_add_ps(sum, _mm256_loadu_ps(t.bias));
  _mm256_storeu_ps(t.out + r * t.out_stride, sum);
}

// While a group of rows is multiplied, the next one is fetched: eight short streams are too many for the hardware to follow.
template <DType kType>
inline void prefetch_next_group(const Tile& t, std::int64_t offset) {
  constexpr int kBytes = kTileWeights * kFileBlockBytes<kType>;
  const std::uint8_t* next = t.weights + kTileWeights * t.weight_stride + offset * kTileWeights;
  for (int line = 0; line < kBytes; line += kCacheLine) _mm_prefetch(next + line, _MM_HINT_T0);
}

// One row of activations: every panel is used once and stays in registers.
template <DType kType>
void multiply_one_row(const Tile& t) {
  const PanelRows rows{t.weights, t.weight_stride};
  const ActivationBlock* x = t.blocks;
  __m256 sum = _mm256_setzero_ps();
  for (std::int64_t offset = 0; offset < row_bytes(kType, t.inner); offset += kFileBlockBytes<kType>) {
    prefetch_next_group<kType>(t, offset);
    unpack_panels<kType>(
        rows, offset, [&](int, const Panel& w) __attribute__((always_inline)) {
          accumulate<kType, 1>(w, &x, &sum);
          ++x;
        });
  }
  store(t, 0, sum, true);
}

// Adds panels [0, count), blocks first_block on, to kRows rows of results from r on; the results wait in `out` between the calls.
template <DType kType, int kRows>
void accumulate_panels(const Tile& t, const Panel* panels, int count, std::int64_t first_block, int r) {
  const std::int64_t num_blocks = t.inner / kBlock;
  const ActivationBlock* x[kRowsAtOnce];
  __m256 sum[kRowsAtOnce];
  for (int i = 0; i < kRows; ++i) {
    x[i] = t.blocks + (r + i) * num_blocks + first_block;
    sum[i] = first_block == 0 ? _mm256_setzero_ps() : _mm256_loadu_ps(t.out + (r + i) * t.out_stride);
  }
  for (int p = 0; p < count; ++p) {
    accumulate<kType, kRows>(panels[p], x, sum);
    for (int i = 0; i < kRows; ++i) ++x[i];
  }
  for (int i = 0; i < kRows; ++i) store(t, r + i, sum[i], first_block + count == num_blocks);
}

// Several rows of activations: panels are unpacked once into the L1 cache, then used for all rows.
template <DType kType>
void multiply_many_rows(const Tile& t) {
  const std::int64_t num_blocks = t.inner / kBlock;
  Panel panels[kPanelsAtOnce];
  for (std::int64_t first = 0; first < num_blocks; first += kPanelsAtOnce) {
    const int count = static_cast<int>(num_blocks - first < kPanelsAtOnce ? num_blocks - first : kPanelsAtOnce);
    const PanelRows rows{t.weights + first / kBlocksPerFileBlock<kType> * kFileBlockBytes<kType>, t.weight_stride};
    for (int p = 0; p < count; p += kBlocksPerFileBlock<kType>) {
      const std::int64_t offset = p / kBlocksPerFileBlock<kType> * kFileBlockBytes<kType>;
      prefetch_next_group<kType>(t, (rows.base - t.weights) + offset);
      unpack_panels<kType>(
          rows, offset, [&](int j, const Panel& w) __attribute__((always_inline)) { panels[p + j] = w; });
    }
    int r = 0;
    for (; r + kRowsAtOnce <= t.num_rows; r += kRowsAtOnce) accumulate_panels<kType, kRowsAtOnce>(t, panels, count, first, r);
    for (; r + 2 <= t.num_rows; r += 2) accumulate_panels<kType, 2>(t, panels, count, first, r);
    for (; r < t.num_rows; ++r) accumulate_panels<kType, 1>(t, panels, count, first, r);
  }
}

#endif

template <DType kType>
void multiply(const Tile& t) {
#if QUIRE_ISA_AVX2
  if (t.num_weights == kTileWeights) return t.num_rows == 1 ? multiply_one_row<kType>(t) : multiply_many_rows<kType>(t);
#endif
  multiply_rows<kType>(t);
}

}  // namespace

void multiply_quantized(DType weight_type, const Tile& tile) {
  switch (weight_type) {
    case DType::kQ4_0:
      return multiply<DType::kQ4_0>(tile);
    case DType::kQ4_1:
      return multiply<DType::kQ4_1>(tile);
    case DType::kQ5_0:
      return multiply<DType::kQ5_0>(tile);
    case DType::kQ5_1:
      return multiply<DType::kQ5_1>(tile);
    case DType::kQ8_0:
      return multiply<DType::kQ8_0>(tile);
    case DType::kQ4_K:
      return multiply<DType::kQ4_K>(tile);
    case DType::kQ5_K:
      return multiply<DType::kQ5_K>(tile);
    default:
      return multiply<DType::kQ6_K>(tile);
  }
}

}  // namespace quire::cpu::QUIRE_ISA
