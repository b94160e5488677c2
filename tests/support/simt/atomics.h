// CUDA's atomic functions on global and shared memory; each returns the old value. Threads are fibers of one OS thread, so that
// plain memory accesses are atomic already.
#pragma once

#include <type_traits>

namespace simt {

template <typename T>
constexpr bool kAtomicInteger = std::is_same_v<T, int> || std::is_same_v<T, unsigned> || std::is_same_v<T, unsigned long long>;

template <typename T, typename Update>
T update_atomically(T* address, Update update) {
  const T old = *address;
  *address = update(old);
  return old;
}

}  // namespace simt

template <typename T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  static_assert(simt::kAtomicInteger<T> || std::is_same_v<T, float> || std::is_same_v<T, double>);
  if constexpr (std::is_same_v<T, int>) {  // wraps around
    return simt::update_atomically(
        address, [&](int old) { return static_cast<int>(static_cast<unsigned>(old) + static_cast<unsigned>(value)); });
  } else {
    return simt::update_atomically(address, [&](T old) { return old + value; });
  }
}
template <typename T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  static_assert(simt::kAtomicInteger<T>);
  return simt::update_atomically(address, [&](T old) { return old < value ? value : old; });
}
template <typename T>
T atomicMin(T* address, std::type_identity_t<T> value) {
  static_assert(simt::kAtomicInteger<T>);
  return simt::update_atomically(address, [&](T old) { return value < old ? value : old; });
}
template <typename T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  static_assert(simt::kAtomicInteger<T> || std::is_same_v<T, float>);
  return simt::update_atomically(address, [&](T) { return value; });
}
template <typename T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  static_assert(simt::kAtomicInteger<T>);
  return simt::update_atomically(address, [&](T old) { return old == expected ? value : old; });
}
