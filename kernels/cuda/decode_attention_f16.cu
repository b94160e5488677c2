// The decode kernels for F16.
#include "kernels/cuda/decode_attention.cuh"

namespace quire::cuda {

void launch_decode_f16(const AttentionParams& params, const AttentionGrid& grid, Stream stream) {
  launch_decode<Half>(params, grid, stream);
}

}  // namespace quire::cuda
