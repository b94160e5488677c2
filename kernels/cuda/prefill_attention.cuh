// Attention of chunks of new tokens over their pages: FlashAttention-2 (Dao 2023, arXiv:2307.08691, alg. 1) with mma.m16n8k16. A
// block takes one work item and KV head: Q [M, D] stays in shared memory, tiles of K and V [kTile, D] come through a ring of
// kStages pairs, K and V waited for separately; each of 4 warps has M / 4 rows and their softmax and output in registers.
//
// Tiles begin at absolute multiples of kTile and all instances take a row through the same operations in the same order, so
// the bits of a row depend on its item's range of positions alone, neither on M nor on its place in the tile. Tiles (and per
// warp, those) that no row sees are skipped; masks are applied only where a row of the block does not see all of a tile.
// Tiles that not all rows of the block see whole are searched for values that are not finite, see common.cuh.
//
//   D     M    registers (sm_80, sm_90a)   shared memory   blocks per SM (H200)   in flight per SM
//   64    64   141, 143                    57 KB           3                      96 KB
//   64    128  223, 223                    65 KB           2                      64 KB
//   80    64   160, 160                    51 KB           3                      60 KB
//   96    64   172, 179                    61 KB           2                      48 KB
//   128   64   190, 194                    81 KB           2                      64 KB
//   128   128  255, 255                    97 KB           2                      64 KB
//   256   64   249, 250                    97 KB           2                      64 KB
//
// (nvcc 13.0, no spills but one that scripts/kernel_table.py explains; in flight: what is copied while a tile is computed. 27 KB
// hide the latency of an H200's memory. All fit the 99 KB that a block may have on sm_86, sm_89 and sm_120, whose SMs hold one.)
#pragma once

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/online_softmax.cuh"
#include "kernels/cuda/page_iterator.cuh"

namespace quire::cuda {

template <int kHeadSize_, int kRowTiles_>
struct PrefillConfig {
  static constexpr int kHeadSize = kHeadSize_, kRowTiles = kRowTiles_;  // fragments of 16 rows per warp
  static constexpr int kWarps = 4, kThreads = kWarps * 32;
  static constexpr int kRows = kWarps * kRowTiles * 16;  // M
  static constexpr int kTile = kHeadSize == 256 ? 32 : 64;
  static constexpr int kStages = kHeadSize == 64 ? 3 : 2;
  static constexpr int kBlocksPerSm = 2;
  static constexpr int kRuns = kTile / 8 / kWarps;  // of a tile that a warp copies
  static constexpr int kQueryBytes = kRows * kHeadSize * 2;
  static constexpr int kTileBytes = kTile * kHeadSize * 2;
  static constexpr int kSharedBytes = kQueryBytes + kStages * 2 * kTileBytes;
  static_assert(kSplitAlignment % kTile == 0);
  static_assert(kSharedBytes + kStaticBytes <= kMostSharedBytes);
};

// The warp's part of a block's work: rows of the tile from first_row on.
template <typename T, typename Config>
class PrefillWarp {
  static constexpr int kHeadSize = Config::kHeadSize, kRowTiles = Config::kRowTiles, kTile = Config::kTile;
  using Layout = TileLayout<kHeadSize>;

 public:
  QUIRE_DEVICE PrefillWarp(const AttentionParams& params, const RowTile& tile, unsigned char* queries)
      : first_row_(warp_id() * kRowTiles * 16), queries_(queries + first_row_ * Layout::kRowBytes), params_(params) {
    first_position_ = tile.position(first_row_);
    last_position_ = tile.position(first_row_ + kRowTiles * 16 - 1);
    has_rows_ = first_row_ < tile.num_rows;
    QUIRE_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      QUIRE_UNROLL
      for (int n = 0; n < kHeadSize / 8; ++n) {
        QUIRE_UNROLL
        for (int j = 0; j < 4; ++j) out_[r][n][j] = 0.0f;
      }
    }
  }

  // Whether some row sees some of the tile's positions.
  QUIRE_DEVICE bool sees(int tile_begin) const {
    return has_rows_ && tile_begin <= last_position_ && tile_begin + kTile - 1 > first_position_ - params_.window;
  }

  // Scores of a tile, soft-capped and masked, then their exponentials.
  QUIRE_DEVICE void score(const RowTile& tile, const unsigned char* keys, int tile_begin, bool is_whole) {
    multiply_keys<T, kHeadSize>(queries_, keys, scores_);
    QUIRE_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      if (params_.softcap > 0.0f) soft_cap(scores_[r], params_.softcap, params_.cap_exponent);
      if (!is_whole) {
        const int positions[2] = {tile.position(row_of(r, 0)), tile.position(row_of(r, 1))};
        mask(scores_[r], tile_begin, positions, params_.window);
      }
      softmax_[r].absorb(scores_[r], out_[r], params_.exponent);
    }
  }
  QUIRE_DEVICE void weigh(const unsigned char* values) { add_values<T, kHeadSize>(scores_, values, out_); }

  // To `out`, through the warp's own rows of Q's shared memory, so that whole sectors are written.
  // `cleared`: whether values were.
  QUIRE_DEVICE void store(const RowTile& tile, int kv_head, bool cleared) {
    finish();
    const int lane = lane_id();
    QUIRE_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      QUIRE_UNROLL
      for (int n = 0; n < kHeadSize / 8; ++n) {
        QUIRE_UNROLL
        for (int i = 0; i < 2; ++i) {
          unsigned char* to = queries_ + Layout::offset(r * 16 + i * 8 + lane / 4, n) + lane % 4 * 4;
          store_shared(reinterpret_cast<std::uint32_t*>(to), pack2<T>(out_[r][n][2 * i], out_[r][n][2 * i + 1]));
        }
      }
    }
    __syncwarp();
    T* out = static_cast<T*>(params_.out);
    for (int i = lane; i < kRowTiles * 16 * Layout::kChunks; i += 32) {
      const int row = i / Layout::kChunks, chunk = i % Layout::kChunks;
      if (first_row_ + row >= tile.num_rows) continue;
      const auto* from = reinterpret_cast<const uint4*>(queries_ + Layout::offset(row, chunk));
      const std::int64_t offset = tile.offset(first_row_ + row, kv_head, params_.out_stride, kHeadSize);
      store_global(reinterpret_cast<uint4*>(out + offset + chunk * kChunkElements), load_shared(from));
    }
    if (cleared) {
      mark(tile, kv_head, [&](int row) { return out + tile.offset(row, kv_head, params_.out_stride, kHeadSize); });
    }
  }

  // To partial rows from `first` on.
  QUIRE_DEVICE void store_partial(const RowTile& tile, std::int64_t first, int kv_head, bool cleared) {
    finish();
    QUIRE_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      QUIRE_UNROLL
      for (int i = 0; i < 2; ++i) {
        if (row_of(r, i) >= tile.num_rows) continue;
        const std::int64_t row = first + row_of(r, i);
        if (lane_id() % 4 == 0) {
          store_global(params_.partial_lse + row, log2_sum(softmax_[r].max[i], softmax_[r].sum[i], params_.exponent));
        }
        QUIRE_UNROLL
        for (int n = 0; n < kHeadSize / 8; ++n) {
          float* to = params_.partial_out + row * kHeadSize + n * 8 + lane_id() % 4 * 2;
          store_global(reinterpret_cast<float2*>(to), make_float2(out_[r][n][2 * i], out_[r][n][2 * i + 1]));
        }
      }
    }
    if (cleared) mark(tile, kv_head, [&](int row) { return params_.partial_out + (first + row) * kHeadSize; });
  }

 private:
  // NaN into the warp's rows, at row_at(row) in memory, where they see values that were cleared.
  template <typename RowAt>
  QUIRE_DEVICE void mark(const RowTile& tile, int kv_head, const RowAt& row_at) {
    __syncwarp();  // other lanes' stores
    QUIRE_ROLLED
    for (int i = lane_id(); i < kRowTiles * 16 * Layout::kChunks; i += 32) {
      const int row = first_row_ + i / Layout::kChunks, chunk = i % Layout::kChunks;
      if (row >= tile.num_rows) continue;
      const uint4 bad = seen_non_finite<T, kHeadSize, kTile>(params_, tile, row, kv_head, chunk);
      store_nan(row_at(row) + chunk * kChunkElements, bad);
    }
  }
  QUIRE_DEVICE int row_of(int r, int i) const { return first_row_ + r * 16 + i * 8 + lane_id() / 4; }
  QUIRE_DEVICE void finish() {
    QUIRE_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      softmax_[r].finish();
      const float inverse[2] = {inverse_or_zero(softmax_[r].sum[0]), inverse_or_zero(softmax_[r].sum[1])};
      QUIRE_UNROLL
      for (int n = 0; n < kHeadSize / 8; ++n) {
        QUIRE_UNROLL
        for (int j = 0; j < 4; ++j) out_[r][n][j] = nan_if_infinite(out_[r][n][j] * inverse[j / 2]);
      }
    }
  }

  int first_row_;
  unsigned char* queries_;
  const AttentionParams& params_;
  int first_position_, last_position_;  // of the warp's rows
  bool has_rows_;
  float scores_[kRowTiles][kTile / 8][4];
  float out_[kRowTiles][kHeadSize / 8][4];
  OnlineSoftmax softmax_[kRowTiles];
};

// In shared memory, since the loop has no registers left.
struct PrefillBlock {
  PositionRange seen_by_all;
  unsigned cleared;    // above 0: values were
  int first_position;  // of the first tile
};
static_assert(sizeof(PrefillBlock) <= kStaticBytes);

template <typename T, typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerSm) prefill_attention_kernel(const AttentionParams params) {
  constexpr int kHeadSize = Config::kHeadSize, kTile = Config::kTile, kStages = Config::kStages, kRuns = Config::kRuns;
  QUIRE_DYNAMIC_SHARED(shared);
  QUIRE_SHARED(block, PrefillBlock);
  unsigned char* const queries = shared;
  unsigned char* const ring = shared + Config::kQueryBytes;

  const WorkItem item = params.items[work_index(params)];
  if (item.sequence < 0) return;
  const int kv_head = kv_head_of(params);
  const RowTile tile(params, item);
  const int first_tile = tile.begin / kTile;
  const int num_tiles = tile.begin < tile.end ? (tile.end - 1) / kTile + 1 - first_tile : 0;

  if (threadIdx.x == 0) block = {tile.seen_by_all(params.window), 0, first_tile * kTile};
  copy_queries<T, kHeadSize, Config::kRows, Config::kThreads>(queries, params, tile, kv_head);
  const int first_run_row = warp_id() * kRuns * 8;
  PageIterator<kTile, kRuns> pages(params, tile.pages, first_tile * kTile + first_run_row, tile.begin, tile.end);
  // Copies the warp's runs of tile i, as two groups: keys, values. Beyond the last tile the groups are empty.
  const auto copy_tile = [&](int i) {
    unsigned char* const keys = ring + i % kStages * 2 * Config::kTileBytes;
    PageRun runs[kRuns];
    if (i < num_tiles) {
      QUIRE_UNROLL
      for (int run = 0; run < kRuns; ++run) {
        runs[run] = pages.template next<kHeadSize>(kv_head);
        copy_run<T, kHeadSize>(keys, first_run_row + run * 8, params.keys, runs[run]);
      }
    }
    cp_async_commit();
    if (i < num_tiles) {
      QUIRE_UNROLL
      for (int run = 0; run < kRuns; ++run) {
        copy_run<T, kHeadSize>(keys + Config::kTileBytes, first_run_row + run * 8, params.values, runs[run]);
      }
    }
    cp_async_commit();
  };
  QUIRE_UNROLL
  for (int i = 0; i < kStages - 1; ++i) copy_tile(i);

  PrefillWarp<T, Config> warp(params, tile, queries);
  __syncthreads();  // `block`
  for (int i = 0; i < num_tiles; ++i) {
    unsigned char* const keys = ring + i % kStages * 2 * Config::kTileBytes;
    const int tile_begin = block.first_position + i * kTile;
    cp_async_wait<2 * (kStages - 1) - 1>();  // keys i
    __syncthreads();                         // of all warps; and all are done with tile i - 1
    copy_tile(i + kStages - 1);
    const bool sees = warp.sees(tile_begin);
    const bool is_whole = block.seen_by_all.holds(tile_begin, tile_begin + kTile);
    if (sees) warp.score(tile, keys, tile_begin, is_whole);
    cp_async_wait<2 * (kStages - 1)>();  // values i
    if (!block.seen_by_all.holds(tile_begin, tile_begin + kTile)) {
      __syncwarp();  // what the warp copied
      constexpr int kShare = Config::kTileBytes / Config::kWarps;
      unsigned char* const share = keys + Config::kTileBytes + warp_id() * kShare;
      if (clear_non_finite<T>(share, kShare / 16)) atomicAdd(&block.cleared, 1u);
    }
    __syncthreads();
    if (sees) warp.weigh(keys + Config::kTileBytes);
  }
  cp_async_wait<0>();
  __syncthreads();  // Q of all warps, if there was no tile; its place is written next
  // Read again rather than kept in registers through the loop.
  const WorkItem done = params.items[work_index(params)];
  const RowTile rows(params, done);
  if (done.partial < 0) {
    warp.store(rows, kv_head, block.cleared != 0);
  } else {
    warp.store_partial(rows, done.partial + std::int64_t{kv_head} * done.num_rows, kv_head, block.cleared != 0);
  }
}

template <typename T, int kHeadSize, int kRowTiles>
void launch_prefill(const AttentionParams& params, const AttentionGrid& grid, Stream stream) {
  using Config = PrefillConfig<kHeadSize, kRowTiles>;
  const dim3 blocks(grid_x(std::int64_t{grid.num_items} * params.num_kv_heads));
  launch(stream, prefill_attention_kernel<T, Config>, {blocks, dim3(Config::kThreads), Config::kSharedBytes}, params);
}

// The large tile only where split_plan.cc asks for it.
template <typename T>
void launch_prefill(const AttentionParams& params, const AttentionGrid& grid, Stream stream) {
  const bool is_large = grid.row_tile == kLargePrefillTile;
  dispatch_head_size(params.head_size, [&]<int kHeadSize>() {
    if constexpr (has_large_prefill_tile(kHeadSize)) {
      if (is_large) return launch_prefill<T, kHeadSize, 2>(params, grid, stream);
    }
    launch_prefill<T, kHeadSize, 1>(params, grid, stream);
  });
}

}  // namespace quire::cuda
