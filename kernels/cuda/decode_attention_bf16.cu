// The decode kernels for BF16.
#include "kernels/cuda/decode_attention.cuh"

namespace quire::cuda {

void launch_decode_bf16(const AttentionParams& params, const AttentionGrid& grid, Stream stream) {
  launch_decode<BFloat16>(params, grid, stream);
}

}  // namespace quire::cuda
