// The instructions of the GPU that C++ has no word for, one function each: the only file with inline PTX. sm_80 and up.
// Pointers are generic; a host compiler gets the same functions from <simt/intrinsics.h>. Layouts of the matrix fragments: PTX
// ISA 8.5, sections "Matrix Fragments for mma.m16n8k16" and "ldmatrix"; with g = lane / 4 and t = lane % 4
//
//   a [16, 16]  a[0]: (g, 2t..+1)   a[1]: (g + 8, 2t..+1)   a[2]: (g, 2t + 8..+9)   a[3]: (g + 8, 2t + 8..+9)
//   b [16, 8]   b0: (2t..+1, g)     b1: (2t + 8..+9, g)
//   d [16, 8]   d[0..1]: (g, 2t..+1)   d[2..3]: (g + 8, 2t..+1)
#pragma once

#include <cstdint>

#include "kernels/cuda/platform.cuh"

namespace quire::cuda {

// Two-byte floats as the bits they are: no arithmetic, only conversions, so that no header of half types is needed.
struct Half {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};

}  // namespace quire::cuda

#if !defined(__CUDACC__)
#include <simt/intrinsics.h>
#else

namespace quire::cuda {

QUIRE_DEVICE std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- asynchronous copies, global to shared (Ampere's cp.async)

// Copies the first num_bytes (0 to 16) of 16 bytes and writes zeros for the rest. Both pointers 16-byte aligned; `global` is
// not read with num_bytes == 0. Lands at a wait of this thread; other threads see it after a barrier behind that wait.
QUIRE_DEVICE void cp_async_16(void* shared, const void* global, int num_bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(num_bytes)
               : "memory");
}
// Closes the group of this thread's copies so far.
QUIRE_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
// Waits until at most kPending of this thread's newest groups are under way.
template <int kPending>
QUIRE_DEVICE void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

// ---- matrix fragments

// Four 8 x 8 matrices of two-byte elements from shared memory: lane 8i + j gives the address of row j of matrix i (16 bytes,
// 16-byte aligned); r[i] gets elements (g, 2t) and (g, 2t + 1) of matrix i.
QUIRE_DEVICE void ldmatrix_x4(std::uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
// The same of the transposes: r[i] gets elements (2t, g) and (2t + 1, g).
QUIRE_DEVICE void ldmatrix_x4_trans(std::uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// d [16, 8] += a [16, 16] * b [16, 8], elements T, float accumulation.
template <typename T>
QUIRE_DEVICE void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1);
template <>
QUIRE_DEVICE void mma_m16n8k16<BFloat16>(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
QUIRE_DEVICE void mma_m16n8k16<Half>(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- conversions, to nearest even; `low` is the element at the lower address

template <typename T>
QUIRE_DEVICE std::uint32_t pack2(float low, float high);
template <>
QUIRE_DEVICE std::uint32_t pack2<BFloat16>(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
template <>
QUIRE_DEVICE std::uint32_t pack2<Half>(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
template <typename T>
QUIRE_DEVICE float2 unpack2(std::uint32_t packed);
template <>
QUIRE_DEVICE float2 unpack2<BFloat16>(std::uint32_t packed) {
  return make_float2(__uint_as_float(packed << 16), __uint_as_float(packed & 0xffff0000u));
}
template <>
QUIRE_DEVICE float2 unpack2<Half>(std::uint32_t packed) {
  float2 unpacked;
  asm("{\n"
      ".reg .b16 low, high;\n"
      "mov.b32 {low, high}, %2;\n"
      "cvt.f32.f16 %0, low;\n"
      "cvt.f32.f16 %1, high;\n"
      "}\n"
      : "=f"(unpacked.x), "=f"(unpacked.y)
      : "r"(packed));
  return unpacked;
}

// ---- arithmetic

// 2^x within 2 units in the last place; 0 for -infinity; results below 2^-126 become 0.
QUIRE_DEVICE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// ---- accesses as one request of the warp each: a vector type moves in one instruction, and the emulator counts sectors and
// banks and checks the alignment

template <typename T>
QUIRE_DEVICE T load_global(const T* pointer) {
  return *pointer;
}
template <typename T>
QUIRE_DEVICE void store_global(T* pointer, T value) {
  *pointer = value;
}
template <typename T>
QUIRE_DEVICE T load_shared(const T* pointer) {
  return *pointer;
}
template <typename T>
QUIRE_DEVICE void store_shared(T* pointer, T value) {
  *pointer = value;
}

}  // namespace quire::cuda
#endif
