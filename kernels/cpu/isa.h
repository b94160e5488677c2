// Names of the CPU instruction sets and of the namespace that a kernel source is compiled into.
//
// Every kernel source in kernels/cpu/ is compiled once per instruction set, with QUIRE_ISA set to its name by CMake, into the
// namespace quire::cpu::QUIRE_ISA. The linker may merge inline functions of equal names from different sources, and would then
// hand AVX2 code to a machine without it: so a kernel source defines everything in its own namespace, and uses nothing from the
// standard library that is emitted out of line (tests/kernels/isa_symbols_test.py reads the objects' symbols).
//
// QUIRE_ISA_AVX2: AVX2, FMA and F16C may be used. QUIRE_ISA_AVX512: also AVX-512 F, BW, DQ, VL and VNNI.
#pragma once

#ifndef QUIRE_ISA
#error "kernel sources are compiled with -DQUIRE_ISA=portable, avx2 or avx512"
#endif

#define QUIRE_ISA_LEVEL_portable 1
#define QUIRE_ISA_LEVEL_avx2 2
#define QUIRE_ISA_LEVEL_avx512 3
#define QUIRE_ISA_LEVEL_avx512_simde 3  // the same sources with AVX-512 emulated: tests/support/simde_avx512.h
#define QUIRE_ISA_CONCAT_(a, b) a##b
#define QUIRE_ISA_CONCAT(a, b) QUIRE_ISA_CONCAT_(a, b)
#define QUIRE_ISA_LEVEL QUIRE_ISA_CONCAT(QUIRE_ISA_LEVEL_, QUIRE_ISA)
#if QUIRE_ISA_LEVEL == 0
#error "QUIRE_ISA names an instruction set that kernels/cpu/isa.h does not know"
#endif
#define QUIRE_ISA_AVX2 (QUIRE_ISA_LEVEL >= 2)
#define QUIRE_ISA_AVX512 (QUIRE_ISA_LEVEL >= 3)
