// The host compiler's side of kernels/cuda/intrinsics.cuh: the same functions, executed by the emulator. The comments there say
// what each does.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/intrinsics.cuh"
#include "simt/half.h"
#include "simt/platform.h"

namespace quire::cuda {

inline void cp_async_16(void* shared, const void* global, int num_bytes, simt::Site site = simt::Site::here()) {
  simt::issue_copy(shared, global, num_bytes, site);
}
inline void cp_async_commit() { simt::commit_copies(); }
template <int kPending>
void cp_async_wait() {
  static_assert(kPending >= 0);
  simt::wait_for_copies(kPending);
}

inline void ldmatrix_x4(std::uint32_t (&r)[4], const void* row, simt::Site site = simt::Site::here()) {
  simt::load_matrices(r, row, false, site);
}
inline void ldmatrix_x4_trans(std::uint32_t (&r)[4], const void* row, simt::Site site = simt::Site::here()) {
  simt::load_matrices(r, row, true, site);
}

template <typename T>
constexpr simt::MatrixType matrix_type() {
  static_assert(std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>);
  return std::is_same_v<T, Half> ? simt::MatrixType::kHalf : simt::MatrixType::kBFloat16;
}

template <typename T>
void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                  simt::Site site = simt::Site::here()) {
  simt::multiply_matrices(matrix_type<T>(), d, a, b0, b1, site);
}

template <typename T>
std::uint32_t pack2(float low, float high) {
  if constexpr (matrix_type<T>() == simt::MatrixType::kHalf)
    return simt::float_to_half(low) | std::uint32_t{simt::float_to_half(high)} << 16;
  else
    return simt::float_to_bfloat16(low) | std::uint32_t{simt::float_to_bfloat16(high)} << 16;
}
template <typename T>
float2 unpack2(std::uint32_t packed) {
  const auto low = static_cast<std::uint16_t>(packed);
  const auto high = static_cast<std::uint16_t>(packed >> 16);
  if constexpr (matrix_type<T>() == simt::MatrixType::kHalf)
    return {simt::half_to_float(low), simt::half_to_float(high)};
  else
    return {simt::bfloat16_to_float(low), simt::bfloat16_to_float(high)};
}

inline float exp2_approx(float x) {
  const float y = exp2f(x);
  return y < 0x1p-126f ? 0.0f : y;
}

template <typename T>
T load_global(const T* pointer, simt::Site site = simt::Site::here()) {
  T value;
  simt::load(simt::Space::kGlobal, pointer, &value, sizeof(T), site);
  return value;
}
template <typename T>
void store_global(T* pointer, T value, simt::Site site = simt::Site::here()) {
  simt::store(simt::Space::kGlobal, pointer, &value, sizeof(T), site);
}
template <typename T>
T load_shared(const T* pointer, simt::Site site = simt::Site::here()) {
  T value;
  simt::load(simt::Space::kShared, pointer, &value, sizeof(T), site);
  return value;
}
template <typename T>
void store_shared(T* pointer, T value, simt::Site site = simt::Site::here()) {
  simt::store(simt::Space::kShared, pointer, &value, sizeof(T), site);
}

}  // namespace quire::cuda
