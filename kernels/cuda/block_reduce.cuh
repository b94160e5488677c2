// Reductions and prefix sums over the lanes of a warp and the threads of a block, in one fixed order: pairs of lanes at distance
// 1, 2, 4, ... and warps likewise, so that every thread gets the same bits.
#pragma once

#include "kernels/cuda/intrinsics.cuh"

namespace quire::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr int kWarpSize = 32;

// The reduction over this thread's team of `width` neighbouring lanes, a power of two up to 32. All lanes of the warp take part.
template <typename T, typename Op>
QUIRE_DEVICE T warp_reduce(T value, int width, Op op) {
  for (int distance = 1; distance < width; distance *= 2) value = op(value, __shfl_xor_sync(kAllLanes, value, distance));
  return value;
}

// The reduction over the block: `blockDim.x` threads, whole warps. A barrier before and after; `partials` is free again then.
template <typename T, typename Op>
QUIRE_DEVICE T block_reduce(T value, T (&partials)[kWarpSize], T identity, Op op) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  value = warp_reduce(value, kWarpSize, op);
  if (lane == 0) partials[warp] = value;
  __syncthreads();
  value = warp_reduce(lane * kWarpSize < static_cast<int>(blockDim.x) ? partials[lane] : identity, kWarpSize, op);
  __syncthreads();
  return value;
}

// The sum of the lanes up to and with this one.
template <typename T>
QUIRE_DEVICE T warp_prefix_sum(T value) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const T below = __shfl_up_sync(kAllLanes, value, static_cast<unsigned>(distance));
    if (lane >= distance) value = below + value;
  }
  return value;
}

struct Sum {
  template <typename T>
  QUIRE_DEVICE T operator()(T a, T b) const {
    return a + b;
  }
};
struct Least {
  template <typename T>
  QUIRE_DEVICE T operator()(T a, T b) const {
    return b < a ? b : a;
  }
};
struct Greatest {
  template <typename T>
  QUIRE_DEVICE T operator()(T a, T b) const {
    return b > a ? b : a;
  }
};

}  // namespace quire::cuda
