// The prefill kernels for BF16.
#include "kernels/cuda/prefill_attention.cuh"

namespace quire::cuda {

void launch_prefill_bf16(const AttentionParams& params, const AttentionGrid& grid, Stream stream) {
  launch_prefill<BFloat16>(params, grid, stream);
}

}  // namespace quire::cuda
