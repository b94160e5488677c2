// Panels of quantised weights times many rows of 8-bit activations on the tile registers of Intel AMX, with the bits of
// matmul_panels.cc: the exact sums of a block of 32 come out of the tiles, sixteen rows by sixteen at once; scales and minima are
// applied as everywhere, block after block. A block of a panel, unpacked, is a tile as it lies: word j of all sixteen rows of
// weights is row j of the tile. Few rows are not worth a tile and take the vectors.
#include "kernels/cpu/matmul_tile.h"

#if QUIRE_ISA_AVX512

#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/panel_vectors.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

constexpr int kGroupRows = AmxTiles::kRows;  // rows of activations in a tile
constexpr int kMostVectorRows = 8;           // up to so many rows take the vectors
constexpr int kBlocksAtOnce = 24;            // unpacked for reuse: as in matmul_panels.cc

enum TileName { kLowerSum, kUpperSum, kActivations, kUpperActivations, kWeights, kUpperWeights, kNumTiles };

// What stands in memory of one block's integer sums: words [half][row of activations][row of weights].
struct BlockSums {
  alignas(64) std::int32_t words[2][kGroupRows][kTileWeights];
};

// A block has 32 weights a row, eight words. Formats with two scales a block are two products of 16.
template <DType kType>
void shape_tiles(AmxTiles& tiles, int num_rows) {
  constexpr int kWords = has_half_scales(kType) ? 4 : 8;
  for (const int sum : {kLowerSum, kUpperSum}) tiles.set_shape(sum, num_rows, AmxTiles::kRowBytes);
  for (const int activations : {kActivations, kUpperActivations}) tiles.set_shape(activations, num_rows, 4 * kWords);
  for (const int weights : {kWeights, kUpperWeights}) tiles.set_shape(weights, kWords, AmxTiles::kRowBytes);
  tiles.configure();
}

// The sums of one block: `x` is that of the first row of activations, `stride` bytes to the next.
template <DType kType>
[[gnu::always_inline]] inline void multiply_block(AmxTiles& tiles, const WeightVectors<kType>& w, const ActivationBlock* x,
                                                  std::int64_t stride, BlockSums& sums) {
  tiles.zero<kLowerSum>();
  tiles.load<kActivations>(x->q, stride);
  tiles.load<kWeights>(w.q, sizeof(Ints));
  tiles.multiply<kLowerSum, kActivations, kWeights>();
  tiles.store<kLowerSum>(sums.words[0], AmxTiles::kRowBytes);
  if constexpr (has_half_scales(kType)) {
    tiles.zero<kUpperSum>();
    tiles.load<kUpperActivations>(x->q + 16, stride);
    tiles.load<kUpperWeights>(w.q + 4, sizeof(Ints));
    tiles.multiply<kUpperSum, kUpperActivations, kUpperWeights>();
    tiles.store<kUpperSum>(sums.words[1], AmxTiles::kRowBytes);
  }
}

// The sums of row r with the offsets of the weights taken off and half scales applied.
template <DType kType>
[[gnu::always_inline]] inline Ints exact_dots(const BlockSums& sums, int r, const WeightVectors<kType>& w,
                                              const ActivationBlock& x) {
  constexpr int kOffset = kType == DType::kQ8_0 ? 128 : panel_offset(kType);
  const Ints lower = load_words(sums.words[0][r]);
  if constexpr (has_half_scales(kType)) {
    const Ints upper = load_words(sums.words[1][r]);
    return _mm512_add_epi32(_mm512_mullo_epi32(w.scale[0], _mm512_sub_epi32(lower, set_words(kOffset * x.half_sum[0]))),
                            _mm512_mullo_epi32(w.scale[1], _mm512_sub_epi32(upper, set_words(kOffset * x.half_sum[1]))));
  }
  if constexpr (kOffset == 0) return lower;
  return _mm512_sub_epi32(lower, set_words(kOffset * (x.half_sum[0] + x.half_sum[1])));
}

// Adds blocks [first, first + count) to `num_rows` (at most kGroupRows) rows of results from r on; the results wait in `out`
// between the calls. While the tiles multiply a block, the vectors scale the one before.
template <DType kType>
void accumulate_group(AmxTiles& tiles, const Tile& t, const WeightVectors<kType>* blocks, std::int64_t first, int count, int r,
                      int num_rows) {
  const std::int64_t num_blocks = t.inner / kBlock;
  const std::int64_t stride = num_blocks * static_cast<std::int64_t>(sizeof(ActivationBlock));
  const ActivationBlock* const x = t.blocks + r * num_blocks + first;
  const auto row = [&](int i) { return i < num_rows ? i : num_rows - 1; };  // the others repeat the last and are not stored
  Floats sum[kGroupRows];
  for (int i = 0; i < kGroupRows; ++i) sum[i] = first == 0 ? set_floats(0.0f) : load_floats(t.out + (r + row(i)) * t.out_stride);

  BlockSums sums[2];
  const auto scale_block = [&](int b) __attribute__((always_inline)) {
    const WeightVectors<kType>& w = blocks[b];
    for (int i = 0; i < kGroupRows; ++i) {
      const ActivationBlock& block = x[row(i) * num_blocks + b];
      const Ints dots = exact_dots<kType>(sums[b % 2], row(i), w, block);
      sum[i] = fma(multiply(w.d, set_floats(block.d)), to_floats(dots), sum[i]);
      if constexpr (has_minimum(kType)) sum[i] = fma(w.m, set_floats(block.d_sum), sum[i]);
    }
  };
  multiply_block<kType>(tiles, blocks[0], x, stride, sums[0]);
  for (int b = 1; b < count; ++b) {
    multiply_block<kType>(tiles, blocks[b], x + b, stride, sums[b % 2]);
    scale_block(b - 1);
  }
  scale_block(count - 1);

  const bool complete = first + count == num_blocks;
  for (int i = 0; i < num_rows; ++i) {
    const Floats result = complete && t.bias != nullptr ? add(sum[i], load_floats(t.bias)) : sum[i];
    store_floats(t.out + (r + i) * t.out_stride, result);
  }
}

template <DType kType>
void multiply(const Tile& t) {
  constexpr int kBlocks = blocks_per_panel(kType);
  const std::int64_t num_blocks = t.inner / kBlock;
  const int full_rows = t.num_rows / kGroupRows * kGroupRows;
  WeightVectors<kType> blocks[kBlocksAtOnce];
  AmxTiles tiles;
  if (full_rows > 0) shape_tiles<kType>(tiles, kGroupRows);
  const std::uint8_t* panel = t.weights;
  for (std::int64_t first = 0; first < num_blocks; first += kBlocksAtOnce) {
    const int count = static_cast<int>(num_blocks - first < kBlocksAtOnce ? num_blocks - first : kBlocksAtOnce);
    for (int at = 0; at < count; at += kBlocks, panel += panel_bytes(kType)) {
      PanelScales<kType> scales;
      scales.unpack(panel, 0);
      for (int b = 0; b < kBlocks; ++b) unpack_vectors<kType>(panel, scales, b, 0, blocks[at + b]);
    }
    for (int r = 0; r < full_rows; r += kGroupRows) accumulate_group<kType>(tiles, t, blocks, first, count, r, kGroupRows);
    if (full_rows == t.num_rows) continue;
    shape_tiles<kType>(tiles, t.num_rows - full_rows);
    accumulate_group<kType>(tiles, t, blocks, first, count, full_rows, t.num_rows - full_rows);
    if (full_rows > 0) shape_tiles<kType>(tiles, kGroupRows);
  }
}

}  // namespace

void multiply_panels_amx(DType weight_type, const Tile& tile) {
  if (tile.num_rows <= kMostVectorRows || tile.inner == 0) return multiply_panels(weight_type, tile);
  for_quantized_type(weight_type, [&]<DType kType>() { multiply<kType>(tile); });
}

}  // namespace quire::cpu::QUIRE_ISA

#endif
