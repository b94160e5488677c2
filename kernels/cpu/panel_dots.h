// The exact integer sums of a block: one panel of weights times some rows of activations. x86 sources only.
#pragma once

#include "kernels/cpu/activation_block.h"
#include "kernels/cpu/panel_vectors.h"

namespace quire::cpu::QUIRE_ISA {

inline constexpr int kRowsAtOnce = QUIRE_ISA_AVX512 ? 8 : 4;  // most rows of activations that share a panel's loads

using Dots = Ints[kRowsAtOnce];

// dots[v][r] = the sums of w[v] times *x[r], with offsets and half scales, for kRows rows of activations.
#if QUIRE_ISA_AVX512

// The integers stay unsigned with their offset; what it adds is taken off at the start, from the sums of the activations.
template <DType kType, int kRows>
[[gnu::always_inline]] inline void integer_dots(const WeightVectors<kType>* weights, const ActivationBlock* const* x,
                                                Dots* all_dots) {
  const WeightVectors<kType>& w = *weights;
  Ints* const dots = *all_dots;
  constexpr int kOffset = kType == DType::kQ8_0 ? 128 : panel_offset(kType);
  const auto start = [&](int r, int mask) {  // minus the offset times the sums of the halves that `mask` leaves
    const Ints factors = set_words(mask & static_cast<int>(0x10001u * (0x10000u - kOffset)));
    return _mm512_dpwssd_epi32(_mm512_setzero_si512(), factors, broadcast_word(x[r]->half_sum));
  };
  if constexpr (has_half_scales(kType)) {
    Ints upper[kRowsAtOnce];
    for (int r = 0; r < kRows; ++r) {
      dots[r] = start(r, 0xffff);
      upper[r] = start(r, ~0xffff);
    }
    for (int j = 0; j < 4; ++j) {
      for (int r = 0; r < kRows; ++r) {
        dots[r] = _mm512_dpbusd_epi32(dots[r], w.q[j], broadcast_word(x[r]->q + 4 * j));
        upper[r] = _mm512_dpbusd_epi32(upper[r], w.q[j + 4], broadcast_word(x[r]->q + 4 * j + 16));
      }
    }
    for (int r = 0; r < kRows; ++r) {
      dots[r] = _mm512_add_epi32(_mm512_mullo_epi32(w.scale[0], dots[r]), _mm512_mullo_epi32(w.scale[1], upper[r]));
    }
  } else {
    for (int r = 0; r < kRows; ++r) dots[r] = kOffset == 0 ? _mm512_setzero_si512() : start(r, -1);
    for (int j = 0; j < 8; ++j) {
      for (int r = 0; r < kRows; ++r) dots[r] = _mm512_dpbusd_epi32(dots[r], w.q[j], broadcast_word(x[r]->q + 4 * j));
    }
  }
}

#else

// Products of unsigned weights are summed in 16 bits as long as they fit: 8 * 2 * 15 * 127, 4 * 2 * 31 * 127 and 2 * 2 * 63 * 127
// are below 2^15. Eight bits are multiplied as magnitudes, with their signs moved to the activations; -128 becomes an unsigned
// 128.
template <DType kType>
inline constexpr int kAdds = kType == DType::kQ8_0    ? 1
                             : has_half_scales(kType) ? 2
                             : has_five_bits(kType)   ? 4
                                                      : 8;

// Sums are added up where they stand: GCC 12 takes all products of a block first, and has them wait in memory.
[[gnu::always_inline]] inline void pin(Ints& sum) { asm("" : "+x"(sum)); }

// Weights of a block, word by word, from vectors or from a panel.
template <int kWord, DType kType>
[[gnu::always_inline]] inline Ints weight_word(const WeightVectors<kType>& w) {
  return w.q[kWord];
}
template <int kWord, DType kType>
[[gnu::always_inline]] inline Ints weight_word(const PanelBlock<kType>& w) {
  return unpack_word<kType, kWord>(w.words);
}

template <DType kType, int kRows, typename Weights>
[[gnu::always_inline]] inline void integer_dots(const Weights* w, const ActivationBlock* const* x, Dots* dots) {
  Dots sum16[kVectorsPerPanel];
  for_each_word([&]<int kWord>() __attribute__((always_inline)) {
    constexpr bool kFirst = kWord % kAdds<kType> == 0, kLast = (kWord + 1) % kAdds<kType> == 0;
    Ints weights[kVectorsPerPanel];
    for (int v = 0; v < kVectorsPerPanel; ++v) weights[v] = weight_word<kWord>(w[v]);
    for (int r = 0; r < kRows; ++r) {
      const Ints word = broadcast_word(x[r]->q + 4 * kWord);
      for (int v = 0; v < kVectorsPerPanel; ++v) {
        const Ints products = kType == DType::kQ8_0
                                  ? _mm256_maddubs_epi16(_mm256_abs_epi8(weights[v]), _mm256_sign_epi8(word, weights[v]))
                                  : _mm256_maddubs_epi16(weights[v], word);
        sum16[v][r] = kFirst ? products : _mm256_add_epi16(sum16[v][r], products);
        pin(sum16[v][r]);
      }
    }
    if constexpr (kLast) {
      for (int v = 0; v < kVectorsPerPanel; ++v) {
        Ints factor = _mm256_set1_epi16(1);
        if constexpr (has_half_scales(kType)) factor = w[v].scale[kWord / 4];
        for (int r = 0; r < kRows; ++r) {
          const Ints sum32 = _mm256_madd_epi16(sum16[v][r], factor);
          dots[v][r] = kWord < kAdds<kType> ? sum32 : _mm256_add_epi32(dots[v][r], sum32);
          if constexpr (kAdds<kType> < 8) pin(dots[v][r]);
        }
      }
    }
  });
  if constexpr (panel_offset(kType) != 0) {
    for (int v = 0; v < kVectorsPerPanel; ++v) {
      Ints offset = _mm256_set1_epi16(panel_offset(kType));
      if constexpr (has_half_scales(kType)) offset = _mm256_slli_epi16(_mm256_blend_epi16(w[v].scale[0], w[v].scale[1], 0xaa), 5);
      for (int r = 0; r < kRows; ++r) {
        dots[v][r] = _mm256_sub_epi32(dots[v][r], _mm256_madd_epi16(offset, broadcast_word(x[r]->half_sum)));
      }
    }
  }
}

// Eight bits that are used again: magnitudes times activations of which those for negative weights have their bits flipped; a
// flipped x is -x - 1, so what is missing is the sum of the magnitudes of the negative weights.
template <DType kType, int kRows>
[[gnu::always_inline]] inline void integer_dots(const SignedVectors<kType>* w, const ActivationBlock* const* x, Dots* dots) {
  const Ints ones = _mm256_set1_epi16(1);
  for (int v = 0; v < kVectorsPerPanel; ++v) {
    for (int r = 0; r < kRows; ++r) dots[v][r] = w[v].negative_sum;
  }
  for_each_word([&]<int kWord>() __attribute__((always_inline)) {
    for (int r = 0; r < kRows; ++r) {
      const Ints word = broadcast_word(x[r]->q + 4 * kWord);
      for (int v = 0; v < kVectorsPerPanel; ++v) {
        const Ints flipped = _mm256_xor_si256(word, w[v].negative[kWord]);
        dots[v][r] = _mm256_add_epi32(dots[v][r], _mm256_madd_epi16(_mm256_maddubs_epi16(w[v].magnitude[kWord], flipped), ones));
        pin(dots[v][r]);
      }
    }
  });
}

#endif

}  // namespace quire::cpu::QUIRE_ISA
