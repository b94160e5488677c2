// The host compiler's side of kernels/cuda/platform.cuh: CUDA's words and built-in functions, executed by the emulator. What is
// declared in the global namespace here has CUDA's name and meaning; what is missing kernels are not to use.
#pragma once

#include <math.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "simt/atomics.h"
#include "simt/builtin_variables.h"
#include "simt/device_math.h"
#include "simt/instructions.h"
#include "simt/site.h"
#include "simt/vector_types.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
#define __shared__ use_QUIRE_SHARED_or_QUIRE_DYNAMIC_SHARED

#define QUIRE_DEVICE inline
// The key's address names the array: one per instance of a template.
#define QUIRE_SHARED(name, ...)    \
  using name##_type = __VA_ARGS__; \
  static char name##_key;          \
  name##_type& name = *static_cast<name##_type*>(::simt::shared_array(&name##_key, sizeof(name##_type), #name))
#define QUIRE_DYNAMIC_SHARED(name) unsigned char* const name = ::simt::dynamic_shared()
#define QUIRE_UNROLL
#define QUIRE_ROLLED

// ---- barriers and fences

inline void __syncthreads(simt::Site site = simt::Site::here()) { simt::sync_threads(site); }
inline void __syncwarp(unsigned mask = 0xffffffffu, simt::Site site = simt::Site::here()) { simt::sync_warp(mask, site); }
// Blocks run one after another, and their threads on one processor: nothing to order.
inline void __threadfence_block() {}
inline void __threadfence() {}

// ---- shuffles of 4 and 8 bytes

namespace simt {

template <typename T>
T shuffled(Shuffle kind, unsigned mask, T value, int lane_operand, int width, Site site) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  shuffle(kind, mask, &value, sizeof(T), lane_operand, width, site);
  return value;
}

}  // namespace simt

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, simt::Site site = simt::Site::here()) {
  return simt::shuffled(simt::Shuffle::kIndex, mask, value, source, width, site);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, simt::Site site = simt::Site::here()) {
  return simt::shuffled(simt::Shuffle::kUp, mask, value, static_cast<int>(delta), width, site);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, simt::Site site = simt::Site::here()) {
  return simt::shuffled(simt::Shuffle::kDown, mask, value, static_cast<int>(delta), width, site);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, simt::Site site = simt::Site::here()) {
  return simt::shuffled(simt::Shuffle::kXor, mask, value, lane_mask, width, site);
}

// ---- votes

inline unsigned __ballot_sync(unsigned mask, int predicate, simt::Site site = simt::Site::here()) {
  return simt::ballot(mask, predicate != 0, "__ballot_sync", site);
}
inline int __any_sync(unsigned mask, int predicate, simt::Site site = simt::Site::here()) {
  return simt::ballot(mask, predicate != 0, "__any_sync", site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, simt::Site site = simt::Site::here()) {
  return simt::ballot(mask, predicate != 0, "__all_sync", site) == mask;
}
