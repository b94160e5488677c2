// CUDA's atomic functions on global and shared memory; each returns the old value. Threads are fibers of one OS thread, so that
// any update without a barrier in it is atomic.
#pragma once

#include <type_traits>

#include "simt/instructions.h"
#include "simt/site.h"

namespace simt {

template <typename T>
constexpr bool kAtomicInteger = std::is_same_v<T, int> || std::is_same_v<T, unsigned> || std::is_same_v<T, unsigned long long>;

template <typename T, typename Update>
T update_atomically(T* address, Site site, Update update) {
  T old;
  atomic_load(address, &old, sizeof(T), site);
  const T updated = update(old);
  atomic_store(address, &updated, sizeof(T));
  return old;
}

}  // namespace simt

template <typename T>
T atomicAdd(T* address, std::type_identity_t<T> value, simt::Site site = simt::Site::here()) {
  static_assert(simt::kAtomicInteger<T> || std::is_same_v<T, float> || std::is_same_v<T, double>);
  if constexpr (std::is_same_v<T, int>) {  // wraps around
    return simt::update_atomically(
        address, site, [&](int old) { return static_cast<int>(static_cast<unsigned>(old) + static_cast<unsigned>(value)); });
  } else {
    return simt::update_atomically(address, site, [&](T old) { return old + value; });
  }
}
template <typename T>
T atomicMax(T* address, std::type_identity_t<T> value, simt::Site site = simt::Site::here()) {
  static_assert(simt::kAtomicInteger<T>);
  return simt::update_atomically(address, site, [&](T old) { return old < value ? value : old; });
}
template <typename T>
T atomicMin(T* address, std::type_identity_t<T> value, simt::Site site = simt::Site::here()) {
  static_assert(simt::kAtomicInteger<T>);
  return simt::update_atomically(address, site, [&](T old) { return value < old ? value : old; });
}
template <typename T>
T atomicExch(T* address, std::type_identity_t<T> value, simt::Site site = simt::Site::here()) {
  static_assert(simt::kAtomicInteger<T> || std::is_same_v<T, float>);
  return simt::update_atomically(address, site, [&](T) { return value; });
}
template <typename T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value, simt::Site site = simt::Site::here()) {
  static_assert(simt::kAtomicInteger<T>);
  return simt::update_atomically(address, site, [&](T old) { return old == expected ? value : old; });
}
