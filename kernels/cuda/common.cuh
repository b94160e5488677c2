// What the attention kernels share: tiles of rows in shared memory, the packed rows of a work item, and the
// two matrix products in fragments. Nothing here synchronises.
//
// Packed rows: the query heads that share a KV head are rows of one matrix, so that its keys and values are read once for all of
// them (grouped queries: Ainslie et al. 2023, arXiv:2305.13245). Row r of a sequence is head r % group of its new token r /
// group.
#pragma once

#include <cmath>
#include <type_traits>

#include "kernels/cuda/attention_params.h"
#include "kernels/cuda/intrinsics.cuh"

namespace quire::cuda {

inline constexpr int kChunkElements = 8;  // of two bytes: 16 bytes, the unit of copies and of fragment rows

// Of shared memory: the static arrays come first, and dynamic memory begins at the next multiple of this.
inline constexpr int kStaticBytes = 1024;

inline constexpr unsigned kFullWarp = 0xffffffffu;
QUIRE_DEVICE int lane_id() { return static_cast<int>(threadIdx.x % 32); }
QUIRE_DEVICE int warp_id() { return static_cast<int>(threadIdx.x / 32); }

// A block's item and KV head: the heads of an item side by side, so that the list's order, the longest first, is the grid's.
QUIRE_DEVICE int work_index(const AttentionParams& params) { return static_cast<int>(blockIdx.x) / params.num_kv_heads; }
QUIRE_DEVICE int kv_head_of(const AttentionParams& params) { return static_cast<int>(blockIdx.x) % params.num_kv_heads; }

// Rows of kHeadSize elements in shared memory, without padding. Chunks are exchanged within a row so that the same chunk of 8
// neighbouring rows (what a phase of ldmatrix reads) and 8 neighbouring chunks (what a phase of cp.async writes) both lie in
// different banks: with P the largest power of two, up to 8, that divides the chunks of a row, rows r and r + 8 / P begin in the
// same bank, and an exclusive-or with r / (8 / P) modulo P sets them apart.
template <int kHeadSize>
struct TileLayout {
  static constexpr int kChunks = kHeadSize / kChunkElements;
  static constexpr int kRowBytes = kHeadSize * 2;
  static constexpr int kExchange = kChunks % 8 == 0 ? 8 : kChunks % 4 == 0 ? 4 : 2;
  static_assert(kHeadSize % 16 == 0);

  QUIRE_DEVICE static int offset(int row, int chunk) {  // bytes
    return row * kRowBytes + (chunk ^ (row / (8 / kExchange) % kExchange)) * 16;
  }
};

struct PositionRange {
  int begin, end;
  QUIRE_DEVICE bool holds(int from, int to) const { return from >= begin && to <= end; }
};

// The rows and positions of one work item.
struct RowTile {
  int sequence_row;    // of q, where the sequence's new tokens begin
  int first_position;  // of the first new token; negative if there are more tokens than positions
  int first_row, num_rows, group;
  int begin, end;  // positions that some row sees, within the item's; begin >= end: none
  const std::int32_t* pages;

  QUIRE_DEVICE RowTile(const AttentionParams& params, const WorkItem& item)
      : first_row(item.first_row), num_rows(item.num_rows), group(params.group) {
    sequence_row = params.q_indptr[item.sequence];
    const int num_tokens = params.q_indptr[item.sequence + 1] - sequence_row;
    first_position = params.kv_lens[item.sequence] - num_tokens;
    pages = params.page_indices + params.page_indptr[item.sequence];
    begin = max(item.begin, position(0) - params.window + 1);
    end = min(item.end, position(num_rows - 1) + 1);
  }
  // Of row `row` of the tile; rows beyond the last, which only fill up the fragments, stand behind it.
  QUIRE_DEVICE int position(int row) const { return first_position + (first_row + row) / group; }
  // The positions that all rows see.
  QUIRE_DEVICE PositionRange seen_by_all(int window) const { return {position(num_rows - 1) - window + 1, position(0) + 1}; }
  // Of row `row` of the tile in an array [T, Hq, D] of outer stride `stride`.
  QUIRE_DEVICE std::int64_t offset(int row, int kv_head, std::int64_t stride, int head_size) const {
    const int packed = first_row + row, token = packed / group;
    return (sequence_row + token) * stride + std::int64_t{kv_head * group + packed - token * group} * head_size;
  }
};

// Copies the tile's rows of q, up to kRows, with zeros below the last; all threads of the block.
template <typename T, int kHeadSize, int kRows, int kThreads>
QUIRE_DEVICE void copy_queries(unsigned char* queries, const AttentionParams& params, const RowTile& tile, int kv_head) {
  using Layout = TileLayout<kHeadSize>;
  const T* source = static_cast<const T*>(params.q);
  for (int i = static_cast<int>(threadIdx.x); i < kRows * Layout::kChunks; i += kThreads) {
    const int row = i / Layout::kChunks, chunk = i % Layout::kChunks;
    const bool is_live = row < tile.num_rows;
    const std::int64_t offset = is_live ? tile.offset(row, kv_head, params.q_stride, kHeadSize) + chunk * kChunkElements : 0;
    cp_async_16(queries + Layout::offset(row, chunk), source + offset, is_live ? 16 : 0);
  }
}

// scores[r] [16, 8 kFragments] = q rows 16 r to 16 r + 15 times the rows of keys.
template <typename T, int kHeadSize, int kRowTiles, int kFragments>
QUIRE_DEVICE void multiply_keys(const unsigned char* queries, const unsigned char* keys,
                                float (&scores)[kRowTiles][kFragments][4]) {
  using Layout = TileLayout<kHeadSize>;
  const int lane = lane_id();
  QUIRE_UNROLL
  for (int r = 0; r < kRowTiles; ++r) {
    QUIRE_UNROLL
    for (int n = 0; n < kFragments; ++n) {
      QUIRE_UNROLL
      for (int j = 0; j < 4; ++j) scores[r][n][j] = 0.0f;
    }
  }
  QUIRE_UNROLL
  for (int k = 0; k < kHeadSize / 16; ++k) {
    std::uint32_t a[kRowTiles][4];
    QUIRE_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      ldmatrix_x4(a[r], queries + r * 16 * Layout::kRowBytes + Layout::offset(lane % 16, 2 * k + lane / 16));
    }
    QUIRE_UNROLL
    for (int n = 0; n < kFragments / 2; ++n) {
      std::uint32_t b[4];
      ldmatrix_x4(b, keys + n * 16 * Layout::kRowBytes + Layout::offset(lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
      QUIRE_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        mma_m16n8k16<T>(scores[r][2 * n], a[r], b[0], b[1]);
        mma_m16n8k16<T>(scores[r][2 * n + 1], a[r], b[2], b[3]);
      }
    }
  }
}

// out[r] [16, D] += weights[r] [16, 8 kFragments], rounded to T, times the rows of values.
template <typename T, int kHeadSize, int kRowTiles, int kFragments>
QUIRE_DEVICE void add_values(const float (&weights)[kRowTiles][kFragments][4], const unsigned char* values,
                             float (&out)[kRowTiles][kHeadSize / 8][4]) {
  using Layout = TileLayout<kHeadSize>;
  const int lane = lane_id();
  QUIRE_UNROLL
  for (int k = 0; k < kFragments / 2; ++k) {
    std::uint32_t a[kRowTiles][4];
    QUIRE_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      QUIRE_UNROLL
      for (int j = 0; j < 4; ++j) {
        const float(&pair)[4] = weights[r][2 * k + j / 2];
        a[r][j] = pack2<T>(pair[j % 2 * 2], pair[j % 2 * 2 + 1]);
      }
    }
    QUIRE_UNROLL
    for (int n = 0; n < kHeadSize / 16; ++n) {
      std::uint32_t b[4];
      ldmatrix_x4_trans(b, values + k * 16 * Layout::kRowBytes + Layout::offset(lane % 16, 2 * n + lane / 16));
      QUIRE_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        mma_m16n8k16<T>(out[r][2 * n], a[r], b[0], b[1]);
        mma_m16n8k16<T>(out[r][2 * n + 1], a[r], b[2], b[3]);
      }
    }
  }
}

// Whether a row sees a position `age` before its own; below 0: in the future.
QUIRE_DEVICE bool is_seen(int age, int window) { return static_cast<unsigned>(age) < static_cast<unsigned>(window); }

// Sets scores of positions that a row does not see to -infinity. Column 0 is `first_position`; rows g and g + 8 stand at
// positions[0] and positions[1].
template <int kFragments>
QUIRE_DEVICE void mask(float (&scores)[kFragments][4], int first_position, const int (&positions)[2], int window) {
  const int column = first_position + lane_id() % 4 * 2;
  QUIRE_UNROLL
  for (int n = 0; n < kFragments; ++n) {
    QUIRE_UNROLL
    for (int j = 0; j < 4; ++j) {
      if (!is_seen(positions[j / 2] - (column + n * 8 + j % 2), window)) scores[n][j] = -INFINITY;
    }
  }
}

// ---- values that are not finite
//
// 0 times infinity is NaN, so a value that is not finite would reach rows that do not see its position wherever other rows of the
// tile do. Such tiles are searched for them; they become 0, and in the end NaN where a row sees them.

// What added to the magnitudes of two elements reaches their sign bits if they are infinity or NaN.
template <typename T>
inline constexpr std::uint32_t kToSign = 0x00800080u;  // BFloat16
template <>
inline constexpr std::uint32_t kToSign<Half> = 0x04000400u;

// All bits of those of the elements that are not finite.
template <typename T>
QUIRE_DEVICE std::uint32_t non_finite(std::uint32_t pair) {
  return (((pair & 0x7fff7fffu) + kToSign<T>) >> 15 & 0x00010001u) * 0xffffu;
}
template <typename T>
QUIRE_DEVICE uint4 non_finite(uint4 chunk) {
  return make_uint4(non_finite<T>(chunk.x), non_finite<T>(chunk.y), non_finite<T>(chunk.z), non_finite<T>(chunk.w));
}

// NaN into those elements of a chunk in memory for which `bad` has all bits.
template <typename T>
QUIRE_DEVICE void store_nan(T* chunk, uint4 bad) {
  const std::uint32_t pairs[4] = {bad.x, bad.y, bad.z, bad.w};
  T nan;
  if constexpr (std::is_same_v<T, float>) {
    nan = NAN;
  } else {
    nan.bits = 0x7fff;  // as conversion makes it
  }
  QUIRE_UNROLL
  for (int i = 0; i < kChunkElements; ++i) {
    if ((pairs[i / 2] >> (i % 2 * 16) & 0xffffu) != 0) store_global(chunk + i, nan);
  }
}

// Whether the lane found some among num_chunks chunks in shared memory, now 0. A warp.
template <typename T>
QUIRE_DEVICE bool clear_non_finite(unsigned char* values, int num_chunks) {
  bool found = false;
  QUIRE_ROLLED
  for (int i = lane_id(); i < num_chunks; i += 32) {
    uint4* const at = reinterpret_cast<uint4*>(values) + i;
    const uint4 chunk = load_shared(at), bad = non_finite<T>(chunk);
    if ((bad.x | bad.y | bad.z | bad.w) == 0) continue;
    store_shared(at, make_uint4(chunk.x & ~bad.x, chunk.y & ~bad.y, chunk.z & ~bad.z, chunk.w & ~bad.w));
    found = true;
  }
  return found;
}

// All bits of those elements of a chunk of the row whose values it sees were cleared: of tiles of kTile positions that not all
// rows see whole. Slow, and not called but for a model or a cache that is broken.
template <typename T, int kHeadSize, int kTile>
QUIRE_DEVICE uint4 seen_non_finite(const AttentionParams& params, const RowTile& tile, int row, int kv_head, int chunk) {
  uint4 all = make_uint4(0, 0, 0, 0);
  const PositionRange seen_by_all = tile.seen_by_all(params.window);
  QUIRE_ROLLED
  for (int position = tile.begin; position < tile.end; ++position) {
    const int tile_begin = position / kTile * kTile;
    if (seen_by_all.holds(tile_begin, tile_begin + kTile)) continue;
    if (!is_seen(tile.position(row) - position, params.window)) continue;
    const std::int64_t block = load_global(tile.pages + position / params.block_size);
    const std::int64_t slot = std::int64_t{kv_head} * params.block_size + position % params.block_size;
    const T* value = static_cast<const T*>(params.values) + block * params.block_stride + slot * kHeadSize;
    const uint4 bad = non_finite<T>(load_global(reinterpret_cast<const uint4*>(value) + chunk));
    all = make_uint4(all.x | bad.x, all.y | bad.y, all.z | bad.z, all.w | bad.w);
  }
  return all;
}

}  // namespace quire::cuda
