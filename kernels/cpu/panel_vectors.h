// A block of a panel in vectors: the integers, scales and minima of kWidth rows of weights. x86 sources only.
#pragma once

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

// The integers of 4 to 6 bits; `words`: the block's vectors, from the word of the first row on.
template <DType kType>
[[gnu::always_inline]] inline void unpack_integers(const std::uint8_t* words, Ints* q) {
  for (int j = 0; j < 4; ++j) {
    const Ints nibbles = load_words(words + j * kWordVectorBytes);
    q[j] = low_nibbles(nibbles);
    q[j + 4] = high_nibbles(nibbles);
  }
  if constexpr (has_five_bits(kType)) {
    const Ints fifth = load_words(words + 4 * kWordVectorBytes);
    const auto add_bit = [&]<int kBit>() { q[kBit] = bit_or(q[kBit], moved_to_bit_4<kBit>(fifth, 16)); };
    add_bit.template operator()<0>();
    add_bit.template operator()<1>();
    add_bit.template operator()<2>();
    add_bit.template operator()<3>();
    add_bit.template operator()<4>();
    add_bit.template operator()<5>();
    add_bit.template operator()<6>();
    add_bit.template operator()<7>();
  }
  if constexpr (kType == DType::kQ6_K) {
    for (int v = 0; v < 2; ++v) {
      const Ints more = load_words(words + (4 + v) * kWordVectorBytes);
      const auto add_bits = [&]<int kWord>() {
        q[4 * v + kWord] = bit_or(q[4 * v + kWord], moved_to_bit_4<2 * kWord>(more, 48));
      };
      add_bits.template operator()<0>();
      add_bits.template operator()<1>();
      add_bits.template operator()<2>();
      add_bits.template operator()<3>();
    }
  }
}

// Block b of `panel`, rows from `row` on.
template <DType kType>
[[gnu::always_inline]] inline void unpack_vectors(const std::uint8_t* panel, const PanelScales<kType>& scales, int b, int row,
                                                  WeightVectors<kType>& w) {
  const std::uint8_t* const words = panel + panel_head_bytes(kType) + b * panel_words(kType) * kWordVectorBytes + 4 * row;
  w.d = scales.d[b];
  if constexpr (has_minimum(kType)) w.m = scales.m[b];
  if constexpr (kType == DType::kQ8_0) {
    for (int j = 0; j < 8; ++j) {
      w.q[j] = load_words(words + j * kWordVectorBytes);
#if QUIRE_ISA_AVX512
      w.q[j] = _mm512_xor_si512(w.q[j], set_bytes(0x80));
#endif
    }
  } else {
    unpack_integers<kType>(words, w.q);
  }
  if constexpr (has_half_scales(kType)) {
    for (int half = 0; half < 2; ++half) {
      w.scale[half] = bytes_as_words(panel + 32 + (2 * b + half) * kPanelRows + row);
#if !QUIRE_ISA_AVX512
      w.scale[half] = _mm256_blend_epi16(w.scale[half], _mm256_slli_epi32(w.scale[half], 16), 0xaa);
#endif
    }
  }
}

}  // namespace quire::cpu::QUIRE_ISA
