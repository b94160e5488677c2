// A block of a panel in vectors: the integers, scales and minima of kWidth rows of weights. x86 sources only.
#pragma once

#include <utility>

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/panel.h"

namespace quire::cpu::QUIRE_ISA {

// 32 weights of kWidth rows.
template <DType kType>
struct WeightVectors {
  Ints q[8];  // byte k of word i of q[j]: weight 4j + k of row i, as panel.h keeps it; AVX-512 adds 128 to those of 8 bits
  Floats d;
  Floats m;       // formats with a minimum
  Ints scale[2];  // the 6-bit format; AVX-512: words; AVX2: twice as 16 bits
};

// The floats of a panel, for its one block or its eight.
template <DType kType>
struct PanelScales {
  static constexpr std::size_t kBlocks = blocks_per_panel(kType);
  Floats d[kBlocks];
  Floats m[kBlocks];  // formats with a minimum

  // `panel` of the rows from `row` on.
  void unpack(const std::uint8_t* panel, int row) {
    if constexpr (kType == DType::kQ4_K || kType == DType::kQ5_K) {
      unpack_k(panel, row);
    } else {
      const Floats scale = load_halves(panel + 2 * row);
      for (Floats& each : d) each = scale;
      if constexpr (has_minimum(kType)) m[0] = load_halves(panel + 2 * (kPanelRows + row));
    }
  }

 private:
  // Byte `index` of each word as a float.
  template <int kIndex>
  static Floats byte_as_float(Ints a) {
    return to_floats(bit_and(shift_right_words<8 * kIndex>(a), set_words(255)));
  }

  void unpack_k(const std::uint8_t* panel, int row) {
    const std::uint8_t* const words = panel + 64 + 4 * row;
    const Floats super = load_halves(panel + 2 * row), super_minimum = load_halves(panel + 2 * (kPanelRows + row));
    const Ints a = load_words(words), b = load_words(words + 64), c = load_words(words + 128);
    const Ints six = set_bytes(63), two = set_bytes(48);
    const Ints scales[2] = {bit_and(a, six), bit_or(low_nibbles(c), bit_and(shift_right<2>(a), two))};
    const Ints minima[2] = {bit_and(b, six), bit_or(high_nibbles(c), bit_and(shift_right<2>(b), two))};
    const auto block = [&]<int kByte>(int half) __attribute__((always_inline)) {
      d[4 * half + kByte] = multiply(super, byte_as_float<kByte>(scales[half]));
      if constexpr (has_minimum(kType)) m[4 * half + kByte] = negate(multiply(super_minimum, byte_as_float<kByte>(minima[half])));
    };
    for (int half = 0; half < 2; ++half) {
      block.template operator()<0>(half);
      block.template operator()<1>(half);
      block.template operator()<2>(half);
      block.template operator()<3>(half);
    }
  }
};

// Word kWord of the integers, as WeightVectors::q has it but for AVX-512's 128; `words`: the block's vectors in a panel, from the
// word of the first row on.
template <DType kType, int kWord>
[[gnu::always_inline]] inline Ints unpack_word(const std::uint8_t* words) {
  if constexpr (kType == DType::kQ8_0) {
    return load_words(words + kWord * kWordVectorBytes);
  } else {
    const Ints nibbles = load_words(words + kWord % 4 * kWordVectorBytes);
    const Ints low = kWord < 4 ? low_nibbles(nibbles) : high_nibbles(nibbles);
    if constexpr (has_five_bits(kType)) {
      return bit_or(low, moved_to_bit_4<kWord>(load_words(words + 4 * kWordVectorBytes), 16));
    } else if constexpr (kType == DType::kQ6_K) {
      return bit_or(low, moved_to_bit_4<2 * (kWord % 4)>(load_words(words + (4 + kWord / 4) * kWordVectorBytes), 48));
    } else {
      return low;
    }
  }
}

template <typename Function, int... kWords>
[[gnu::always_inline]] inline void for_each_word(const Function& function, std::integer_sequence<int, kWords...>) {
  (function.template operator()<kWords>(), ...);
}
// function.template operator()<kWord>() for the eight words of a block.
template <typename Function>
[[gnu::always_inline]] inline void for_each_word(const Function& function) {
  for_each_word(function, std::make_integer_sequence<int, 8>());
}

// The integers of block b of `panel`, rows from `row` on.
template <DType kType>
[[gnu::always_inline]] inline const std::uint8_t* integer_words(const std::uint8_t* panel, int b, int row) {
  return panel + panel_head_bytes(kType) + b * panel_words(kType) * kWordVectorBytes + 4 * row;
}

// Scales and minima of a block, whatever keeps its integers.
template <DType kType, typename Weights>
[[gnu::always_inline]] inline void unpack_scales(const std::uint8_t* panel, const PanelScales<kType>& scales, int b, int row,
                                                 Weights& w) {
  w.d = scales.d[b];
  if constexpr (has_minimum(kType)) w.m = scales.m[b];
  if constexpr (has_half_scales(kType)) {
    for (int half = 0; half < 2; ++half) {
      w.scale[half] = bytes_as_words(panel + 32 + (2 * b + half) * kPanelRows + row);
#if !QUIRE_ISA_AVX512
      w.scale[half] = _mm256_blend_epi16(w.scale[half], _mm256_slli_epi32(w.scale[half], 16), 0xaa);
#endif
    }
  }
}

// Block b of `panel`, rows from `row` on.
template <DType kType>
[[gnu::always_inline]] inline void unpack_vectors(const std::uint8_t* panel, const PanelScales<kType>& scales, int b, int row,
                                                  WeightVectors<kType>& w) {
  const std::uint8_t* const words = integer_words<kType>(panel, b, row);
  unpack_scales(panel, scales, b, row, w);
  for_each_word([&]<int kWord>() {
    w.q[kWord] = unpack_word<kType, kWord>(words);
#if QUIRE_ISA_AVX512
    if constexpr (kType == DType::kQ8_0) w.q[kWord] = _mm512_xor_si512(w.q[kWord], set_bytes(0x80));
#endif
  });
}

#if !QUIRE_ISA_AVX512

// A block whose integers stay in the panel.
template <DType kType>
struct PanelBlock {
  const std::uint8_t* words;
  Floats d;
  Floats m;
  Ints scale[2];
};

template <DType kType>
[[gnu::always_inline]] inline void unpack_vectors(const std::uint8_t* panel, const PanelScales<kType>& scales, int b, int row,
                                                  PanelBlock<kType>& w) {
  w.words = integer_words<kType>(panel, b, row);
  unpack_scales(panel, scales, b, row, w);
}

// 8-bit weights as magnitudes and signs.
template <DType kType>
struct SignedVectors {
  Ints magnitude[8];
  Ints negative[8];   // bytes of ones where the weight is below zero
  Ints negative_sum;  // words: the magnitudes of those
  Floats d;
};

template <DType kType>
[[gnu::always_inline]] inline void unpack_vectors(const std::uint8_t* panel, const PanelScales<kType>& scales, int b, int row,
                                                  SignedVectors<kType>& w) {
  const std::uint8_t* const words = integer_words<kType>(panel, b, row);
  unpack_scales(panel, scales, b, row, w);
  Ints sum = _mm256_setzero_si256();
  for_each_word([&]<int kWord>() {
    const Ints q = load_words(words + kWord * kWordVectorBytes);
    w.magnitude[kWord] = _mm256_abs_epi8(q);
    w.negative[kWord] = _mm256_cmpgt_epi8(_mm256_setzero_si256(), q);
    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(bit_and(w.magnitude[kWord], w.negative[kWord]), set_bytes(1)));
  });
  w.negative_sum = _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
}

#endif

}  // namespace quire::cpu::QUIRE_ISA
