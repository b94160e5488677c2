// Combines the partial results of rows whose positions were split: out = sum of 2^(lse_i - top) o_i over the sum of these
// weights, in ascending order of the parts, each o_i normalised. Parts in which a row saw nothing (lse = -infinity) are left out,
// so a row with a single other part gets exactly the bits that part would have written to `out` itself.
//
// A warp takes a row, a lane four elements. 32 registers or less, no shared memory; bound by reading D + 1 floats per part.
#include <cmath>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/online_softmax.cuh"

namespace quire::cuda {
namespace {

constexpr int kWarps = 4;

template <typename T>
__global__ void __launch_bounds__(kWarps * 32) combine_attention_kernel(const AttentionParams params) {
  const CombineItem item = params.combines[blockIdx.x];
  const int row = static_cast<int>(blockIdx.z) * kWarps + warp_id();
  if (item.sequence < 0 || row >= item.num_rows) return;
  const int kv_head = static_cast<int>(blockIdx.y);
  const std::int64_t stride = std::int64_t{params.num_kv_heads} * item.num_rows;  // from part to part
  const std::int64_t first = item.partial + std::int64_t{kv_head} * item.num_rows + row;

  float top = -INFINITY;
  for (int i = 0; i < item.num_parts; ++i) top = fmaxf(top, load_global(params.partial_lse + first + i * stride));
  const RowTile tile(params, {item.sequence, item.first_row, item.num_rows, 0, 0, -1});
  T* const out = static_cast<T*>(params.out) + tile.offset(row, kv_head, params.out_stride, params.head_size);
  for (int element = lane_id() * 4; element < params.head_size; element += 128) {
    float sum = 0.0f;
    float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int i = 0; i < item.num_parts; ++i) {
      const std::int64_t part_row = first + i * stride;
      const float lse = load_global(params.partial_lse + part_row);
      const float* from = params.partial_out + part_row * params.head_size + element;
      const float4 part = load_global(reinterpret_cast<const float4*>(from));
      if (lse == -INFINITY) continue;
      const float weight = exp2_approx(lse - top);
      sum += weight;
      total.x = fmaf(part.x, weight, total.x);
      total.y = fmaf(part.y, weight, total.y);
      total.z = fmaf(part.z, weight, total.z);
      total.w = fmaf(part.w, weight, total.w);
    }
    const float inverse = inverse_or_zero(sum);
    store_global(reinterpret_cast<uint2*>(out + element),
                 make_uint2(pack2<T>(total.x * inverse, total.y * inverse), pack2<T>(total.z * inverse, total.w * inverse)));
  }
}

template <typename T>
void launch_combine(const AttentionParams& params, const AttentionGrid& grid, Stream stream) {
  const dim3 blocks(grid_x(grid.num_combines), static_cast<unsigned>(params.num_kv_heads),
                    static_cast<unsigned>((grid.row_tile + kWarps - 1) / kWarps));
  launch(stream, combine_attention_kernel<T>, {blocks, dim3(kWarps * 32)}, params);
}

}  // namespace

void launch_combine_bf16(const AttentionParams& params, const AttentionGrid& grid, Stream stream) {
  launch_combine<BFloat16>(params, grid, stream);
}
void launch_combine_f16(const AttentionParams& params, const AttentionGrid& grid, Stream stream) {
  launch_combine<Half>(params, grid, stream);
}

}  // namespace quire::cuda
