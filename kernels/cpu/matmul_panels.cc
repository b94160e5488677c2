// Panels of quantised weights times 8-bit activations: the fast form of matmul_quantized.cc, with its bits. A panel's sixteen
// rows are the lanes of a vector (AVX-512) or of two; where rows of activations are few, panels go from memory through registers,
// else they are unpacked once into the L1 cache and used for all rows.
#include <type_traits>

#include "kernels/cpu/matmul_tile.h"
#include "kernels/cpu/panel.h"
#if QUIRE_ISA_AVX2
#include "kernels/cpu/panel_dots.h"
#else
#include "kernels/cpu/quantized_dot.h"
#endif

namespace quire::cpu::QUIRE_ISA {
namespace {

#if QUIRE_ISA_AVX2

constexpr int kPrefetchBytes = 4096;  // ahead of a stream of panels
constexpr int kCacheLine = 64;

// How rows of activations are taken: as few, whose weights go from the panel through registers, or as many.
template <DType kType>
struct Plan {
#if QUIRE_ISA_AVX512
  using FewRowsWeights = WeightVectors<kType>;
  using ManyRowsWeights = WeightVectors<kType>;
  static constexpr int kFewRows = kRowsAtOnce;  // most that are few
  static constexpr int kManyRows = 8;           // of many, multiplied at once
  static constexpr int kBlocks = 24;            // unpacked for many: 12 to 18 KB, half of an L1 cache
#else
  using FewRowsWeights = PanelBlock<kType>;
  using Signed = SignedVectors<kType>;
  using Unsigned = WeightVectors<kType>;
  using ManyRowsWeights = std::conditional_t<kType == DType::kQ8_0, Signed, Unsigned>;
  static constexpr int kFewRows = kAdds<kType> == 8 ? 2 * kRowsAtOnce : kRowsAtOnce;  // four bits cost little to unpack again
  static constexpr int kManyRows = kType == DType::kQ8_0 ? 4 : 3;  // three: sums of 16 bits and of floats fill sixteen registers
  static constexpr int kBlocks = kType == DType::kQ8_0 ? 12 : 24;
#endif
};

using Sums = Floats[kRowsAtOnce];

template <DType kType, int kRows, typename Weights>
[[gnu::always_inline]] inline void accumulate(const Weights* w, const ActivationBlock* const* x, Sums* sum) {
  Dots dots[kVectorsPerPanel];
  integer_dots<kType, kRows>(w, x, dots);
  for (int v = 0; v < kVectorsPerPanel; ++v) {
    for (int r = 0; r < kRows; ++r) {
      sum[v][r] = fma(multiply(w[v].d, set_floats(x[r]->d)), to_floats(dots[v][r]), sum[v][r]);
      if constexpr (has_minimum(kType)) sum[v][r] = fma(w[v].m, set_floats(x[r]->d_sum), sum[v][r]);
    }
  }
}

inline void store(const Tile& t, int r, int vector, Floats sum, bool complete) {
  if (complete && t.bias != nullptr) sum = add(sum, load_floats(t.bias + vector * kWidth));
  store_floats(t.out + r * t.out_stride + vector * kWidth, sum);
}

// The bytes of the blocks to be unpacked next, asked for while others are multiplied: so many lines a step that the last step
// asks for the last line. Into the second cache, for the first is full of what is multiplied.
class NextBlocks {
 public:
  NextBlocks(const std::uint8_t* first, std::int64_t bytes, std::int64_t steps)
      : next_(first), end_(first + bytes), step_bytes_((bytes / steps / kCacheLine + 1) * kCacheLine) {}

  [[gnu::always_inline]] void prefetch() {
    const std::uint8_t* const stop = next_ + step_bytes_ < end_ ? next_ + step_bytes_ : end_;
    for (; next_ < stop; next_ += kCacheLine) _mm_prefetch(next_, _MM_HINT_T1);
  }

 private:
  const std::uint8_t* next_;
  const std::uint8_t* end_;
  std::int64_t step_bytes_;
};

// The lines of block b of the panels that lie kPrefetchBytes ahead. A product that waits for memory asks for them in the second
// cache, which takes more requests at a time than the first; one that is bound by multiplying loses by the longer way from there.
template <DType kType, int kRows>
[[gnu::always_inline]] inline void prefetch_block(const std::uint8_t* panels, std::int64_t b) {
  constexpr int kBytes = panel_bytes(kType) / blocks_per_panel(kType);
  const std::uint8_t* const first = panels + kPrefetchBytes + b * kBytes;
  constexpr auto kCache = kRows < kRowsAtOnce || kType == DType::kQ8_0 ? _MM_HINT_T1 : _MM_HINT_T0;
  for (int line = 0; line < kBytes; line += kCacheLine) _mm_prefetch(first + line, kCache);
}

// Few rows of activations: every panel is used once, from registers. Of kRows rows t.num_rows exist; the others repeat the last.
template <DType kType, int kRows>
void multiply_few_rows(const Tile& t) {
  constexpr int kBlocks = blocks_per_panel(kType);
  const std::int64_t num_blocks = t.inner / kBlock;
  const ActivationBlock* x[kRowsAtOnce];
  Sums sum[kVectorsPerPanel];
  for (int r = 0; r < kRows; ++r) {
    x[r] = t.blocks + (r < t.num_rows ? r : t.num_rows - 1) * num_blocks;
    for (int v = 0; v < kVectorsPerPanel; ++v) sum[v][r] = set_floats(0.0f);
  }
  const std::uint8_t* panel = t.weights;
  for (std::int64_t first = 0; first < num_blocks; first += kBlocks, panel += panel_bytes(kType)) {
    PanelScales<kType> scales[kVectorsPerPanel];
    for (int v = 0; v < kVectorsPerPanel; ++v) scales[v].unpack(panel, v * kWidth);
    for (int b = 0; b < kBlocks; ++b) {
      prefetch_block<kType, kRows>(panel, b);
      typename Plan<kType>::FewRowsWeights w[kVectorsPerPanel];
      for (int v = 0; v < kVectorsPerPanel; ++v) unpack_vectors<kType>(panel, scales[v], b, v * kWidth, w[v]);
      accumulate<kType, kRows>(w, x, sum);
      for (int r = 0; r < kRows; ++r) ++x[r];
    }
  }
  for (int r = 0; r < kRows && r < t.num_rows; ++r)
    for (int v = 0; v < kVectorsPerPanel; ++v) store(t, r, v, sum[v][r], true);
}

template <DType kType>
using UnpackedPanel = typename Plan<kType>::ManyRowsWeights[kVectorsPerPanel];

// Adds blocks [first, first + count) to kRows rows of results from r on; the results wait in `out` between the calls.
template <DType kType, int kRows>
void accumulate_blocks(const Tile& t, const UnpackedPanel<kType>* blocks, std::int64_t first, int count, int r,
                       NextBlocks& next) {
  const std::int64_t num_blocks = t.inner / kBlock;
  const ActivationBlock* x[kRowsAtOnce];
  Sums sum[kVectorsPerPanel];
  for (int i = 0; i < kRows; ++i) {
    x[i] = t.blocks + (r + i) * num_blocks + first;
    for (int v = 0; v < kVectorsPerPanel; ++v) {
      sum[v][i] = first == 0 ? set_floats(0.0f) : load_floats(t.out + (r + i) * t.out_stride + v * kWidth);
    }
  }
  for (int b = 0; b < count; ++b) {
    next.prefetch();
    accumulate<kType, kRows>(blocks[b], x, sum);
    for (int i = 0; i < kRows; ++i) ++x[i];
  }
  for (int i = 0; i < kRows; ++i)
    for (int v = 0; v < kVectorsPerPanel; ++v) store(t, r + i, v, sum[v][i], first + count == num_blocks);
}

// Many rows of activations: blocks are unpacked once into the L1 cache, then used for all rows.
template <DType kType>
void multiply_many_rows(const Tile& t) {
  constexpr int kBlocks = blocks_per_panel(kType), kAtOnce = Plan<kType>::kBlocks, kRows = Plan<kType>::kManyRows;
  const std::int64_t num_blocks = t.inner / kBlock;
  UnpackedPanel<kType> blocks[Plan<kType>::kBlocks];
  const std::uint8_t* panel = t.weights;
  std::int64_t first = 0;
  do {  // once without blocks, too: results are zero, plus the bias
    const int count = static_cast<int>(num_blocks - first < kAtOnce ? num_blocks - first : kAtOnce);
    for (int at = 0; at < count; at += kBlocks, panel += panel_bytes(kType)) {
      for (int v = 0; v < kVectorsPerPanel; ++v) {
        PanelScales<kType> scales;
        scales.unpack(panel, v * kWidth);
        for (int b = 0; b < kBlocks; ++b) unpack_vectors<kType>(panel, scales, b, v * kWidth, blocks[at + b][v]);
      }
    }
    const std::int64_t more = first + count < num_blocks ? num_blocks - first - count : num_blocks;  // or those of the next tile
    const int next_count = static_cast<int>(more < kAtOnce ? more : kAtOnce);
    NextBlocks next(panel, next_count / kBlocks * panel_bytes(kType), (t.num_rows + kRows - 1) / kRows * count + 1);
    int r = 0;
    for (; r + kRows <= t.num_rows; r += kRows) accumulate_blocks<kType, kRows>(t, blocks, first, count, r, next);
    for (; r + 2 <= t.num_rows; r += 2) accumulate_blocks<kType, 2>(t, blocks, first, count, r, next);
    if (r < t.num_rows) accumulate_blocks<kType, 1>(t, blocks, first, count, r, next);
    first += kAtOnce;
  } while (first < num_blocks);
}

template <DType kType>
void multiply_few_rows(const Tile& t) {
  if (t.num_rows == 1) return multiply_few_rows<kType, 1>(t);
  if (t.num_rows == 2) return multiply_few_rows<kType, 2>(t);
  if (t.num_rows <= 4) return multiply_few_rows<kType, 4>(t);
  multiply_few_rows<kType, kRowsAtOnce>(t);
}

template <DType kType>
void multiply(const Tile& t) {
  if (t.num_rows > Plan<kType>::kFewRows) return multiply_many_rows<kType>(t);
  for (int r = 0; r < t.num_rows; r += kRowsAtOnce) {
    Tile part = t;
    part.blocks += r * (t.inner / kBlock);
    part.out += r * t.out_stride;
    part.num_rows = t.num_rows - r < kRowsAtOnce ? t.num_rows - r : kRowsAtOnce;
    multiply_few_rows<kType>(part);
  }
}

#else

template <DType kType>
void multiply(const Tile& t) {
  multiply_row_by_row<kType>(t, [&](int i, std::int64_t b, WeightBlock& w) { unpack_panel_block<kType>(t.weights, i, b, w); });
}

#endif

}  // namespace

void multiply_panels(DType weight_type, const Tile& tile) {
  for_quantized_type(weight_type, [&]<DType kType>() { multiply<kType>(tile); });
}

}  // namespace quire::cpu::QUIRE_ISA
