// AVX-512 for machines without it, so that its kernels are tested everywhere: put before a kernel source with -include, this
// turns the 512-bit intrinsics into SIMDe's, which takes them apart into AVX2 (native here, so that fma is one rounding). What
// Debian's SIMDe lacks stands below, by halves.
#pragma once

#ifdef __AVX512F__
#error "SIMDe would use the machine's own AVX-512"
#endif
#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "SIMDe's own fma rounds twice"
#endif

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

namespace quire::testing {

struct Halves512 {
  simde__m512i_private v;
  explicit Halves512(simde__m512i a) : v(simde__m512i_to_private(a)) {}
  Halves512(__m256i lower, __m256i upper) {
    v.m256i[0] = lower;
    v.m256i[1] = upper;
  }
  simde__m512i join() const { return simde__m512i_from_private(v); }
};

[[gnu::always_inline]] static inline simde__m512 cvtph_ps(__m256i h) {
  const __m256 lower = _mm256_cvtph_ps(_mm256_castsi256_si128(h)), upper = _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1));
  return simde_mm512_castsi512_ps(Halves512(_mm256_castps_si256(lower), _mm256_castps_si256(upper)).join());
}
[[gnu::always_inline]] static inline simde__m512i cvtepu16_epi32(__m256i a) {
  return Halves512(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(a)), _mm256_cvtepu16_epi32(_mm256_extracti128_si256(a, 1)))
      .join();
}
[[gnu::always_inline]] static inline simde__m512i cvtepi8_epi32(__m128i a) {
  return Halves512(_mm256_cvtepi8_epi32(a), _mm256_cvtepi8_epi32(_mm_srli_si128(a, 8))).join();
}
[[gnu::always_inline]] static inline simde__m512i cvtps_epi32(simde__m512 a) {
  const Halves512 h(simde_mm512_castps_si512(a));
  return Halves512(_mm256_cvtps_epi32(_mm256_castsi256_ps(h.v.m256i[0])), _mm256_cvtps_epi32(_mm256_castsi256_ps(h.v.m256i[1])))
      .join();
}
[[gnu::always_inline]] static inline simde__m512 cvtepi32_ps(simde__m512i a) {
  const Halves512 h(a);
  const __m256 lower = _mm256_cvtepi32_ps(h.v.m256i[0]), upper = _mm256_cvtepi32_ps(h.v.m256i[1]);
  return simde_mm512_castsi512_ps(Halves512(_mm256_castps_si256(lower), _mm256_castps_si256(upper)).join());
}

}  // namespace quire::testing

#define _mm512_cvtph_ps quire::testing::cvtph_ps
#define _mm512_cvtepu16_epi32 quire::testing::cvtepu16_epi32
#define _mm512_cvtepi8_epi32 quire::testing::cvtepi8_epi32
#define _mm512_cvtps_epi32 quire::testing::cvtps_epi32
#define _mm512_cvtepi32_ps quire::testing::cvtepi32_ps
