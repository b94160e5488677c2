// Lanes: the vector of a machine as kWidth words, 8 with AVX2 and 16 with AVX-512, under one set of names, so that the products
// of panels are written once. A vector belongs to kWidth neighbouring rows of weights, a word or a float for each. x86 sources
// only.
#pragma once

#include "kernels/cpu/simd.h"

namespace quire::cpu::QUIRE_ISA {

#if QUIRE_ISA_AVX512

inline constexpr int kWidth = 16;
using Ints = __m512i;
using Floats = __m512;

inline Ints load_words(const void* p) { return _mm512_loadu_si512(p); }
inline Ints set_words(int a) { return _mm512_set1_epi32(a); }
inline Ints set_bytes(int a) { return _mm512_set1_epi8(static_cast<char>(a)); }
inline Ints bit_and(Ints a, Ints b) { return _mm512_and_si512(a, b); }
inline Ints bit_or(Ints a, Ints b) { return _mm512_or_si512(a, b); }
template <int kBits>
inline Ints shift_left(Ints a) {  // of 16-bit units, as is shift_right
  return _mm512_slli_epi16(a, kBits);
}
template <int kBits>
inline Ints shift_right(Ints a) {
  return _mm512_srli_epi16(a, kBits);
}
template <int kBits>
inline Ints shift_right_words(Ints a) {
  return _mm512_srli_epi32(a, kBits);
}
inline Ints bytes_as_words(const void* p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))); }

inline Floats load_halves(const void* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p))); }
inline Floats load_floats(const float* p) { return _mm512_loadu_ps(p); }
inline void store_floats(float* p, Floats a) { _mm512_storeu_ps(p, a); }
inline Floats set_floats(float a) { return _mm512_set1_ps(a); }
inline Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats negate(Floats a) {
  return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(a), _mm512_set1_epi32(1 << 31)));
}

#else

inline constexpr int kWidth = 8;
using Ints = __m256i;
using Floats = __m256;

inline Ints load_words(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline Ints set_words(int a) { return _mm256_set1_epi32(a); }
inline Ints set_bytes(int a) { return _mm256_set1_epi8(static_cast<char>(a)); }
inline Ints bit_and(Ints a, Ints b) { return _mm256_and_si256(a, b); }
inline Ints bit_or(Ints a, Ints b) { return _mm256_or_si256(a, b); }
template <int kBits>
inline Ints shift_left(Ints a) {  // of 16-bit units, as is shift_right
  return _mm256_slli_epi16(a, kBits);
}
template <int kBits>
inline Ints shift_right(Ints a) {
  return _mm256_srli_epi16(a, kBits);
}
template <int kBits>
inline Ints shift_right_words(Ints a) {
  return _mm256_srli_epi32(a, kBits);
}
inline Ints bytes_as_words(const void* p) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))); }

inline Floats load_halves(const void* p) { return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
inline Floats load_floats(const float* p) { return _mm256_loadu_ps(p); }
inline void store_floats(float* p, Floats a) { _mm256_storeu_ps(p, a); }
inline Floats set_floats(float a) { return _mm256_set1_ps(a); }
inline Floats to_floats(Ints a) { return _mm256_cvtepi32_ps(a); }
inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
inline Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Floats negate(Floats a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }

#endif

inline constexpr int kVectorsPerPanel = 16 / kWidth;

// The four bytes at p, in every word.
inline Ints broadcast_word(const void* p) {
  int word;
  __builtin_memcpy(&word, p, sizeof word);
  return set_words(word);
}
inline Ints low_nibbles(Ints a) { return bit_and(a, set_bytes(15)); }
inline Ints high_nibbles(Ints a) { return low_nibbles(shift_right<4>(a)); }

// Bits `mask` of every byte, once bit kFrom of it has moved to bit 4.
template <int kFrom>
inline Ints moved_to_bit_4(Ints a, int mask) {
  if constexpr (kFrom <= 4)
    return bit_and(shift_left<4 - kFrom>(a), set_bytes(mask));
  else
    return bit_and(shift_right<kFrom - 4>(a), set_bytes(mask));
}

}  // namespace quire::cpu::QUIRE_ISA
