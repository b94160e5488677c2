// Attention of single new tokens (or short drafts) over their pages, bound by memory: split-KV (Dao et al. 2023,
// "Flash-Decoding") with the query heads of a KV head packed into one 16-row fragment, so that each key and value is read from
// memory once. A block takes one work item and KV head. Its warps share nothing but Q until the end: each takes its own 16
// positions of every tile through its own ring of kStages pairs of K and V, without barriers, into its own softmax and output;
// these are then combined in the order of the warps.
//
//   D     registers (sm_80, sm_90a)   shared memory   blocks per SM (H200)   in flight per SM
//   64    80, 80                      67 KB           3                      144 KB
//   80    95, 96                      64 KB           3                      120 KB
//   96    124, 123                    76 KB           2                      96 KB
//   128   127, 127                    69 KB           3                      96 KB
//   256   242, 240                    73 KB           3                      96 KB
//
// (nvcc 13.0, no spills; in flight: what is copied while a part is computed. 27 KB hide the latency of an H200's memory.)
#pragma once

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/online_softmax.cuh"
#include "kernels/cuda/page_iterator.cuh"

namespace quire::cuda {

template <int kHeadSize_>
struct DecodeConfig {
  static constexpr int kHeadSize = kHeadSize_;
  static constexpr int kWarps = kHeadSize == 256 ? 2 : 4, kThreads = kWarps * 32;
  static constexpr int kRows = kDecodeRows, kPositions = 16;  // of a warp's part of a tile
  static constexpr int kTile = kWarps * kPositions;
  static constexpr int kStages = kHeadSize == 64 ? 4 : kHeadSize < 128 ? 3 : 2;
  static constexpr int kQueryBytes = kRows * kHeadSize * 2;
  static constexpr int kPartBytes = kPositions * kHeadSize * 2;  // of K or V
  static constexpr int kRingBytes = kStages * 2 * kPartBytes;    // of a warp
  // The warps' outputs take the place of their rings. Eight floats more per row keep a fragment's rows in different banks.
  static constexpr int kOutStride = kHeadSize + 8;
  static constexpr int kOutBytes = kRows * kOutStride * static_cast<int>(sizeof(float));  // of a warp
  static constexpr int kSharedBytes = kQueryBytes + kWarps * (kRingBytes > kOutBytes ? kRingBytes : kOutBytes);
  static_assert(kSplitAlignment % kTile == 0);
  static_assert(kSharedBytes + kStaticBytes <= kMostSharedBytes);
};

// What the warps leave for the end. [rows of the fragment, or warps and rows]
template <typename Config>
struct DecodeSums {
  float max[Config::kWarps][Config::kRows];
  float sum[Config::kWarps][Config::kRows];
  unsigned cleared;  // above 0: some values were
  static_assert((2 * Config::kWarps * Config::kRows + 1) * sizeof(float) <= kStaticBytes);
};

// The warp's loop over its part of the item's tiles. `cleared`: whether the lane cleared values, see common.cuh.
template <typename T, typename Config>
QUIRE_DEVICE void attend(const AttentionParams& params, const RowTile& tile, int kv_head, const unsigned char* queries,
                         unsigned char* ring, OnlineSoftmax& softmax, float (&out)[1][Config::kHeadSize / 8][4], bool& cleared) {
  constexpr int kHeadSize = Config::kHeadSize, kTile = Config::kTile, kStages = Config::kStages;
  constexpr int kFragments = Config::kPositions / 8;
  const int lane = lane_id();
  const int first_tile = tile.begin / kTile;
  const int num_tiles = tile.begin < tile.end ? (tile.end - 1) / kTile + 1 - first_tile : 0;
  const int first_position = first_tile * kTile + warp_id() * Config::kPositions;
  PageIterator<kTile, 2> pages(params, tile.pages, first_position, tile.begin, tile.end);
  const auto copy_part = [&](int i) {
    unsigned char* const keys = ring + i % kStages * 2 * Config::kPartBytes;
    if (i < num_tiles) {
      QUIRE_UNROLL
      for (int run = 0; run < 2; ++run) {
        const PageRun source = pages.template next<kHeadSize>(kv_head);
        copy_run<T, kHeadSize>(keys, run * 8, params.keys, source);
        copy_run<T, kHeadSize>(keys + Config::kPartBytes, run * 8, params.values, source);
      }
    }
    cp_async_commit();
  };
  QUIRE_UNROLL
  for (int i = 0; i < kStages - 1; ++i) copy_part(i);
  cp_async_wait<kStages - 1>();  // Q, the first group
  __syncthreads();

  const int positions[2] = {tile.position(lane / 4), tile.position(lane / 4 + 8)};
  const PositionRange seen_by_all = tile.seen_by_all(params.window);
  for (int i = 0; i < num_tiles; ++i) {
    cp_async_wait<kStages - 2>();
    __syncwarp();  // part i of all lanes; and all are done with part i - 1
    copy_part(i + kStages - 1);
    const unsigned char* const keys = ring + i % kStages * 2 * Config::kPartBytes;
    const int begin = first_position + i * kTile, end = begin + Config::kPositions;
    if (end <= tile.begin || begin >= tile.end) continue;
    float scores[1][kFragments][4];
    multiply_keys<T, kHeadSize>(queries, keys, scores);
    if (params.softcap > 0.0f) soft_cap(scores[0], params.softcap, params.cap_exponent);
    if (!seen_by_all.holds(begin, end)) {
      mask(scores[0], begin, positions, params.window);
      unsigned char* const values = ring + i % kStages * 2 * Config::kPartBytes + Config::kPartBytes;
      cleared |= clear_non_finite<T>(values, Config::kPartBytes / 16);
      __syncwarp();
    }
    softmax.absorb(scores[0], out[0], params.exponent);
    add_values<T, kHeadSize>(scores, keys + Config::kPartBytes, out);
  }
}

// Leaves the warp's maxima, sums and unnormalised output in shared memory.
template <typename Config>
QUIRE_DEVICE void leave_part(const OnlineSoftmax& softmax, const float (&out)[Config::kHeadSize / 8][4], float* outs,
                             DecodeSums<Config>& sums) {
  const int lane = lane_id(), warp = warp_id();
  QUIRE_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int row = i * 8 + lane / 4;
    if (lane % 4 == 0) {
      sums.max[warp][row] = softmax.max[i];
      sums.sum[warp][row] = softmax.sum[i];
    }
    float* to = outs + (warp * Config::kRows + row) * Config::kOutStride + lane % 4 * 2;
    QUIRE_UNROLL
    for (int n = 0; n < Config::kHeadSize / 8; ++n) {
      store_shared(reinterpret_cast<float2*>(to + n * 8), make_float2(out[n][2 * i], out[n][2 * i + 1]));
    }
  }
}

// Combines the warps' parts of four elements of a row; `lse` gets the row's.
template <typename Config>
QUIRE_DEVICE float4 combine_parts(const float* outs, const DecodeSums<Config>& sums, int row, int element, float exponent,
                                  float& lse) {
  float top = -INFINITY, sum = 0.0f;
  QUIRE_UNROLL
  for (int warp = 0; warp < Config::kWarps; ++warp) top = fmaxf(top, sums.max[warp][row]);
  const float base = top == -INFINITY ? 0.0f : top;
  float4 out = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  QUIRE_UNROLL
  for (int warp = 0; warp < Config::kWarps; ++warp) {
    const float weight = exp2_approx((sums.max[warp][row] - base) * exponent);
    const float* from = outs + (warp * Config::kRows + row) * Config::kOutStride + element;
    const float4 part = load_shared(reinterpret_cast<const float4*>(from));
    sum += sums.sum[warp][row] * weight;
    out.x += part.x * weight;
    out.y += part.y * weight;
    out.z += part.z * weight;
    out.w += part.w * weight;
  }
  lse = log2_sum(top, sum, exponent);
  const float inverse = inverse_or_zero(sum);
  return make_float4(nan_if_infinite(out.x * inverse), nan_if_infinite(out.y * inverse), nan_if_infinite(out.z * inverse),
                     nan_if_infinite(out.w * inverse));
}

template <typename T, typename Config>
__global__ void __launch_bounds__(Config::kThreads) decode_attention_kernel(const AttentionParams params) {
  constexpr int kHeadSize = Config::kHeadSize, kQuads = kHeadSize / 4;
  QUIRE_DYNAMIC_SHARED(shared);
  QUIRE_SHARED(sums, DecodeSums<Config>);
  unsigned char* const queries = shared;
  unsigned char* const rings = shared + Config::kQueryBytes;

  const WorkItem item = params.items[work_index(params)];
  if (item.sequence < 0) return;
  const int kv_head = kv_head_of(params);
  const RowTile tile(params, item);
  if (threadIdx.x == 0) sums.cleared = 0;
  copy_queries<T, kHeadSize, Config::kRows, Config::kThreads>(queries, params, tile, kv_head);
  cp_async_commit();

  OnlineSoftmax softmax;
  float out[1][kHeadSize / 8][4];
  QUIRE_UNROLL
  for (int n = 0; n < kHeadSize / 8; ++n) {
    QUIRE_UNROLL
    for (int j = 0; j < 4; ++j) out[0][n][j] = 0.0f;
  }
  bool cleared = false;
  attend<T, Config>(params, tile, kv_head, queries, rings + warp_id() * Config::kRingBytes, softmax, out, cleared);
  softmax.finish();
  if (cleared) atomicAdd(&sums.cleared, 1u);
  __syncthreads();  // all warps are done with their rings; the groups of copies still open are empty
  float* const outs = reinterpret_cast<float*>(rings);
  leave_part<Config>(softmax, out[0], outs, sums);
  __syncthreads();

  const std::int64_t first_partial = item.partial + std::int64_t{kv_head} * item.num_rows;
  for (int i = static_cast<int>(threadIdx.x); i < tile.num_rows * kQuads; i += Config::kThreads) {
    const int row = i / kQuads, element = i % kQuads * 4;
    float lse;
    float4 value = combine_parts<Config>(outs, sums, row, element, params.exponent, lse);
    if (sums.cleared != 0) {
      const uint4 bad = seen_non_finite<T, kHeadSize, Config::kPositions>(params, tile, row, kv_head, element / kChunkElements);
      const std::uint32_t low = element % kChunkElements == 0 ? bad.x : bad.z,
                          high = element % kChunkElements == 0 ? bad.y : bad.w;
      value = make_float4((low & 0xffffu) != 0 ? NAN : value.x, low >> 16 != 0 ? NAN : value.y,
                          (high & 0xffffu) != 0 ? NAN : value.z, high >> 16 != 0 ? NAN : value.w);
    }
    if (item.partial < 0) {
      T* to = static_cast<T*>(params.out) + tile.offset(row, kv_head, params.out_stride, kHeadSize) + element;
      store_global(reinterpret_cast<uint2*>(to), make_uint2(pack2<T>(value.x, value.y), pack2<T>(value.z, value.w)));
    } else {
      store_global(reinterpret_cast<float4*>(params.partial_out + (first_partial + row) * kHeadSize + element), value);
      if (element == 0) store_global(params.partial_lse + first_partial + row, lse);
    }
  }
}

template <typename T>
void launch_decode(const AttentionParams& params, const AttentionGrid& grid, Stream stream) {
  const dim3 blocks(grid_x(std::int64_t{grid.num_items} * params.num_kv_heads));
  dispatch_head_size(params.head_size, [&]<int kHeadSize>() {
    using Config = DecodeConfig<kHeadSize>;
    launch(stream, decode_attention_kernel<T, Config>, {blocks, dim3(Config::kThreads), Config::kSharedBytes}, params);
  });
}

}  // namespace quire::cuda
