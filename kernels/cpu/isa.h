// Names of the CPU instruction sets and of the namespace that a kernel source is compiled into.
//
// Every kernel source in kernels/cpu/ is compiled once per instruction set, with QUIRE_ISA set to its name by CMake, into the
// namespace quire::cpu::QUIRE_ISA. The linker may merge inline functions of equal names from different sources, and would then
// hand AVX2 code to a machine without it: so a kernel source defines everything in its own namespace, and uses nothing from the
// standard library that is emitted out of line (tests/kernels/isa_symbols_test.py reads the objects' symbols).
#pragma once

#ifndef QUIRE_ISA
#error "kernel sources are compiled with -DQUIRE_ISA=portable or -DQUIRE_ISA=avx2"
#endif

#define QUIRE_ISA_IS_avx2 1
#define QUIRE_ISA_CONCAT_(a, b) a##b
#define QUIRE_ISA_CONCAT(a, b) QUIRE_ISA_CONCAT_(a, b)
#if QUIRE_ISA_CONCAT(QUIRE_ISA_IS_, QUIRE_ISA)
#define QUIRE_ISA_AVX2 1
#else
#define QUIRE_ISA_AVX2 0
#endif
