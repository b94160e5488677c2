// The prefill kernels for F16.
#include "kernels/cuda/prefill_attention.cuh"

namespace quire::cuda {

void launch_prefill_f16(const AttentionParams& params, const AttentionGrid& grid, Stream stream) {
  launch_prefill<Half>(params, grid, stream);
}

}  // namespace quire::cuda
