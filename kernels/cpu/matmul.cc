// Cuts a call into tiles of sixteen rows of weights by up to kTileRows rows of activations, which threads take in any order.
#include "kernels/cpu/matmul_tile.h"
#include "kernels/cpu/quantize.h"
#include "kernels/cpu/variant.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// Pieces for each thread, so that one that is held up by foreign load leaves its share to the others.
constexpr std::int64_t kPiecesPerThread = 8;

std::int64_t grain_of(std::int64_t count, const ThreadPool& pool) {
  return ceil_div(count, pool.num_threads() * kPiecesPerThread);
}

std::int64_t num_groups(const Projection& p) { return ceil_div(p.weight.shape[0], kTileWeights); }

// blocks [R, terms, K / 32].
void quantize_rows(const TensorView& x, int terms, ActivationBlock* blocks, ThreadPool& pool) {
  const std::int64_t num_blocks = x.shape[1] / kBlock;
  const auto quantize = [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) {
      ActivationBlock* const row = blocks + r * terms * num_blocks;
      if (terms == 1) {
        quantize_row(x.row_as<const float>(r), num_blocks, row);
      } else {
        quantize_row_in_two_terms(x.row_as<const float>(r), num_blocks, row, row + num_blocks);
      }
    }
  };
  if (x.shape[0] <= 4) return quantize(0, x.shape[0], 0);  // waking the threads would take longer
  pool.parallel_for(x.shape[0], grain_of(x.shape[0], pool), quantize);
}

using MultiplyPanels = void (*)(DType, const Tile&);

void multiply_one_term(const Projection& p, const Tile& tile, MultiplyPanels panels) {
  if (!is_quantized(p.weight.dtype)) return multiply_float(p.weight.dtype, tile);
  p.weight.layout == Layout::kPanels ? panels(p.weight.dtype, tile) : multiply_quantized(p.weight.dtype, tile);
}

// A tile whose results do not go where it says as they come: of two terms a row, multiplied like rows of their own, then added,
// then the bias; or of a group of panels that is not full.
void multiply_aside(const Projection& p, const Tile& tile, int terms, MultiplyPanels panels) {
  float results[kTileRows * kTileWeights];
  Tile aside = tile;
  aside.num_weights = kTileWeights;
  aside.num_rows = terms * tile.num_rows;
  aside.bias = nullptr;
  aside.out = results;
  aside.out_stride = kTileWeights;
  if (p.weight.layout == Layout::kRows) aside.num_weights = tile.num_weights;
  multiply_one_term(p, aside, panels);
  for (int r = 0; r < tile.num_rows; ++r) {
    const float* const term = results + terms * r * kTileWeights;
    for (int i = 0; i < tile.num_weights; ++i) {
      const float sum = terms == 1 ? term[i] : term[i] + term[kTileWeights + i];
      tile.out[r * tile.out_stride + i] = tile.bias != nullptr ? sum + tile.bias[i] : sum;
    }
  }
}

// The tile of group `group` of the projection and of rows [row, row + num_rows).
void multiply_tile(const MatmulArgs& args, const Projection& p, std::int64_t group, std::int64_t row, std::int64_t num_rows,
                   const ActivationBlock* blocks, MultiplyPanels panels) {
  const std::int64_t first = group * kTileWeights;
  Tile tile;
  tile.weights = p.weight.row_as<const std::uint8_t>(first);
  tile.weight_stride = row_bytes(p.weight.dtype, p.weight.outer_stride);
  tile.num_weights = static_cast<int>(smaller(kTileWeights, p.weight.shape[0] - first));
  tile.inner = args.x.shape[1];
  tile.num_rows = static_cast<int>(num_rows);
  tile.bias = p.bias.data == nullptr ? nullptr : p.bias.as<const float>() + first;
  tile.out = p.out.row_as<float>(row) + first;
  tile.out_stride = p.out.outer_stride;
  tile.x = args.x.row_as<const float>(row);
  tile.x_stride = args.x.outer_stride;
  const int terms = is_quantized(p.weight.dtype) ? args.activation_terms : 1;
  tile.blocks = blocks + row * terms * (tile.inner / kBlock);
  const bool full = tile.num_weights == kTileWeights || p.weight.layout == Layout::kRows;
  terms == 1 && full ? multiply_one_term(p, tile, panels) : multiply_aside(p, tile, terms, panels);
}

void multiply(const MatmulArgs& args, ThreadPool& pool, void* scratch, MultiplyPanels panels) {
  auto* const blocks = static_cast<ActivationBlock*>(scratch);
  std::int64_t groups = 0;  // of all projections, one after the other: one region for all
  bool any_quantized = false, any_float = false;
  for (int i = 0; i < args.num_projections; ++i) {
    groups += num_groups(args.projections[i]);
    (is_quantized(args.projections[i].weight.dtype) ? any_quantized : any_float) = true;
  }
  if (any_quantized) quantize_rows(args.x, args.activation_terms, blocks, pool);

  const std::int64_t rows = args.x.shape[0];
  const std::int64_t tile_rows = (any_float ? kFloatTileRows : kTileRows) / args.activation_terms;
  const std::int64_t tiles = groups * ceil_div(rows, tile_rows);
  pool.parallel_for(tiles, grain_of(tiles, pool), [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t tile = begin; tile < end; ++tile) {
      const std::int64_t row = tile / groups * tile_rows;  // neighbours share the rows of activations, and stream the weights
      std::int64_t group = tile % groups;
      const Projection* p = args.projections;
      for (; group >= num_groups(*p); ++p) group -= num_groups(*p);
      multiply_tile(args, *p, group, row, smaller(tile_rows, rows - row), blocks, panels);
    }
  });
}

}  // namespace

void matmul(const MatmulArgs& args, ThreadPool& pool, void* scratch) { multiply(args, pool, scratch, multiply_panels); }
#if QUIRE_ISA_AVX512
void matmul_amx(const MatmulArgs& args, ThreadPool& pool, void* scratch) { multiply(args, pool, scratch, multiply_panels_amx); }
#endif

}  // namespace quire::cpu::QUIRE_ISA
