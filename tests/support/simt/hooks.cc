// The hooks build: kernels compiled with -fsanitize=thread call these functions before their accesses to memory. Linked in place
// of ThreadSanitizer's own library, they show the emulator every access without any mark in the source. Names and signatures are
// the compilers' (g++ 12, clang 14). The code of accesses is the return address.
#include <cstddef>
#include <cstring>

#include "simt/memory.h"

namespace {

[[maybe_unused]] const bool linked = simt::announce_hooks();

}  // namespace

#define SIMT_CODE __builtin_return_address(0)
#define SIMT_READ(address, bytes) simt::observe(simt::Access::kRead, address, bytes, SIMT_CODE)
#define SIMT_WRITE(address, bytes) simt::observe(simt::Access::kWrite, address, bytes, SIMT_CODE)

#define SIMT_HOOKS(bytes)                                                         \
  void __tsan_read##bytes(void* address) { SIMT_READ(address, bytes); }           \
  void __tsan_write##bytes(void* address) { SIMT_WRITE(address, bytes); }         \
  void __tsan_unaligned_read##bytes(void* address) { SIMT_READ(address, bytes); } \
  void __tsan_unaligned_write##bytes(void* address) { SIMT_WRITE(address, bytes); }

// Atomic accesses of C++ itself: kernels have none (CUDA's are functions of the emulator), launchers have the guards of their
// static variables.
#define SIMT_ATOMICS(bits, type)                                                                                            \
  type __tsan_atomic##bits##_load(const volatile type* address, int) { return __atomic_load_n(address, __ATOMIC_SEQ_CST); } \
  void __tsan_atomic##bits##_store(volatile type* address, type value, int) {                                               \
    __atomic_store_n(address, value, __ATOMIC_SEQ_CST);                                                                     \
  }                                                                                                                         \
  type __tsan_atomic##bits##_exchange(volatile type* address, type value, int) {                                            \
    return __atomic_exchange_n(address, value, __ATOMIC_SEQ_CST);                                                           \
  }                                                                                                                         \
  type __tsan_atomic##bits##_fetch_add(volatile type* address, type value, int) {                                           \
    return __atomic_fetch_add(address, value, __ATOMIC_SEQ_CST);                                                            \
  }                                                                                                                         \
  type __tsan_atomic##bits##_fetch_sub(volatile type* address, type value, int) {                                           \
    return __atomic_fetch_sub(address, value, __ATOMIC_SEQ_CST);                                                            \
  }                                                                                                                         \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile type* address, type* expected, type value, int, int) {         \
    return __atomic_compare_exchange_n(address, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                \
  }                                                                                                                         \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile type* address, type* expected, type value, int, int) {           \
    return __atomic_compare_exchange_n(address, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                \
  }                                                                                                                         \
  type __tsan_atomic##bits##_compare_exchange_val(volatile type* address, type expected, type value, int, int) {            \
    __atomic_compare_exchange_n(address, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                      \
    return expected;                                                                                                        \
  }

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

SIMT_HOOKS(1)
SIMT_HOOKS(2)
SIMT_HOOKS(4)
SIMT_HOOKS(8)
SIMT_HOOKS(16)
void __tsan_read_range(void* address, std::size_t bytes) { SIMT_READ(address, bytes); }
void __tsan_write_range(void* address, std::size_t bytes) { SIMT_WRITE(address, bytes); }

void* __tsan_memcpy(void* to, const void* from, std::size_t bytes) {
  SIMT_READ(from, bytes);
  SIMT_WRITE(to, bytes);
  return std::memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, std::size_t bytes) {
  SIMT_READ(from, bytes);
  SIMT_WRITE(to, bytes);
  return std::memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, std::size_t bytes) {
  SIMT_WRITE(to, bytes);
  return std::memset(to, value, bytes);
}

SIMT_ATOMICS(8, unsigned char)
SIMT_ATOMICS(16, unsigned short)
SIMT_ATOMICS(32, unsigned int)
SIMT_ATOMICS(64, unsigned long)
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) {}

}  // extern "C"
