// What a kernel source needs before its first line: the words of CUDA C++ under names that have a second meaning on a host
// compiler. nvcc gives them the GPU's. A host compiler finds <simt/platform.h> on its include path: the emulator of the tests,
// which runs the same source thread by thread. Kernels use these words and never __shared__, <<<>>>, asm or CUDA's half-precision
// headers.
//
//   QUIRE_DEVICE                         a function of the device, inlined
//   QUIRE_SHARED(name, float[8][33]);    a static array of the block; every element is to be written before it is read
//   QUIRE_DYNAMIC_SHARED(name);          unsigned char* to the block's dynamic memory, 1,024-byte aligned
//   QUIRE_UNROLL                         before a loop whose body indexes registers
//   QUIRE_ROLLED                         before a loop that is to cost few registers
#pragma once

#if defined(__CUDACC__)
#include <cuda_runtime.h>

#define QUIRE_DEVICE __device__ __forceinline__
#define QUIRE_SHARED(name, ...)    \
  using name##_type = __VA_ARGS__; \
  __shared__ __align__(16) name##_type name
#define QUIRE_DYNAMIC_SHARED(name)                                        \
  extern __shared__ __align__(1024) unsigned char quire_dynamic_shared[]; \
  unsigned char* const name = quire_dynamic_shared
#define QUIRE_UNROLL _Pragma("unroll")
#define QUIRE_ROLLED _Pragma("unroll 1")
#else
#include <simt/platform.h>
#endif
