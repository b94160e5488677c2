// Panel: a block of 32 weights of eight rows at once, transposed so that a product with one row of activations leaves the sums
// of the eight rows in the eight lanes of one vector, with no sums across lanes. AVX2 sources only.
// The integers and scales are those of weight_block.h, except that formats with an offset keep it: q + 8, q + 16, q + 32.
#pragma once

#include "kernels/cpu/weight_block.h"

namespace quire::cpu::QUIRE_ISA {

struct Panel {
  __m256i q[8];      // bytes 4i to 4i + 3 of q[j] are weights 4j to 4j + 3 of row i
  __m256 d;          // of row i in lane i
  __m256 m;          // formats with a minimum
  __m256i scale[2];  // the 6-bit format: half_scale of row i, twice as a 16-bit integer, in lane i
};

// What q of the panel is above q of WeightBlock.
constexpr int panel_offset(DType t) {
  switch (t) {
    case DType::kQ4_0:
      return 8;
    case DType::kQ5_0:
      return 16;
    case DType::kQ6_K:
      return 32;
    default:
      return 0;
  }
}

// Eight rows of a matrix of file blocks, from some byte of the row on.
struct PanelRows {
  const std::uint8_t* base;
  std::int64_t stride;

  // 32 bits of each row.
  __m256i dwords(std::int64_t offset) const {
    const auto at = [&](int i) {
      int v;
      __builtin_memcpy(&v, base + offset + i * stride, sizeof v);
      return v;
    };
    return _mm256_setr_epi32(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7));
  }

  // 16 bytes of each row: bytes 4i to 4i + 3 of q[j] are bytes 4j to 4j + 3 of row i.
  void transpose16(std::int64_t offset, __m256i* q) const {
    const auto rows = [&](int i) {  // row i and row i + 4
      const auto* p = base + offset + i * stride;
      const __m128i upper = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 4 * stride));
      return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), upper, 1);
    };
    const __m256i r0 = rows(0), r1 = rows(1), r2 = rows(2), r3 = rows(3);
    const __m256i a = _mm256_unpacklo_epi32(r0, r1), b = _mm256_unpackhi_epi32(r0, r1);
    const __m256i c = _mm256_unpacklo_epi32(r2, r3), d = _mm256_unpackhi_epi32(r2, r3);
    q[0] = _mm256_unpacklo_epi64(a, c);
    q[1] = _mm256_unpackhi_epi64(a, c);
    q[2] = _mm256_unpacklo_epi64(b, d);
    q[3] = _mm256_unpackhi_epi64(b, d);
  }
  void transpose32(std::int64_t offset, __m256i* q) const {
    transpose16(offset, q);
    transpose16(offset + 16, q + 4);
  }
};

// The half in the low or the high 16 bits of each lane.
inline __m256 low_f16(__m256i v) {
  v = _mm256_and_si256(v, _mm256_set1_epi32(0xffff));
  return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1)));
}
inline __m256 high_f16(__m256i v) { return low_f16(_mm256_srli_epi32(v, 16)); }

inline __m256i low_nibbles(__m256i v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
inline __m256i high_nibbles(__m256i v) { return low_nibbles(_mm256_srli_epi16(v, 4)); }

// Adds 16 to the bytes of q[j] that have their bit set: bit 4j + k of lane i belongs to byte 4i + k of q[j].
inline void add_fifth_bits(__m256i bits, __m256i* q) {
  const __m256i even = _mm256_set1_epi32(0x08040201), odd = _mm256_slli_epi16(even, 4);
  __m256i spread = _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c, 0, 0x04040404, 0x08080808, 0x0c0c0c0c);
  for (int j = 0; j < 8; ++j) {
    const __m256i mask = j % 2 == 0 ? even : odd;
    const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(bits, spread), mask), mask);
    q[j] = _mm256_or_si256(q[j], _mm256_and_si256(set, _mm256_set1_epi8(16)));
    if (j % 2 == 1) spread = _mm256_add_epi8(spread, _mm256_set1_epi8(1));
  }
}

// Calls emit(j, panel) for the blocks j of the file block at `offset`.
template <DType kType, typename Emit>
[[gnu::always_inline]] inline void unpack_legacy_panel(const PanelRows& rows, std::int64_t offset, const Emit& emit) {
  constexpr bool kFiveBits = kType == DType::kQ5_0 || kType == DType::kQ5_1;
  Panel panel;
  const __m256i head = rows.dwords(offset);
  panel.d = low_f16(head);
  offset += 2;
  if constexpr (has_minimum(kType)) {
    panel.m = high_f16(head);
    offset += 2;
  }
  if constexpr (kType == DType::kQ8_0) {
    rows.transpose32(offset, panel.q);
  } else {
    __m256i nibbles[4];
    rows.transpose16(kFiveBits ? offset + 4 : offset, nibbles);
    for (int j = 0; j < 4; ++j) {
      panel.q[j] = low_nibbles(nibbles[j]);
      panel.q[j + 4] = high_nibbles(nibbles[j]);
    }
    if constexpr (kFiveBits) add_fifth_bits(rows.dwords(offset), panel.q);
  }
  emit(0, panel);
}

// Byte `index` of each lane as a float.
template <int kIndex>
inline __m256 byte_as_float(__m256i v) {
  return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(v, 8 * kIndex), _mm256_set1_epi32(255)));
}

// Moves bit `from` of each byte to bit 4 and clears the others.
template <int kFrom>
inline __m256i fifth_bit(__m256i v) {
  const __m256i moved =
      kFrom < 4 ? _mm256_slli_epi16(v, kFrom < 4 ? 4 - kFrom : 0) : _mm256_srli_epi16(v, kFrom < 4 ? 0 : kFrom - 4);
  return _mm256_and_si256(moved, _mm256_set1_epi8(16));
}

// The 6-bit scales and minima of Q4_K and Q5_K: byte j % 4 of [j / 4] belongs to block j.
struct ScalesK {
  __m256i scale[2], minimum[2];
  ScalesK(const PanelRows& rows, std::int64_t offset) {
    const __m256i a = rows.dwords(offset), b = rows.dwords(offset + 4), c = rows.dwords(offset + 8);
    const __m256i six = _mm256_set1_epi8(63), two = _mm256_set1_epi8(48);
    scale[0] = _mm256_and_si256(a, six);
    minimum[0] = _mm256_and_si256(b, six);
    scale[1] = _mm256_or_si256(low_nibbles(c), _mm256_and_si256(_mm256_srli_epi16(a, 2), two));
    minimum[1] = _mm256_or_si256(high_nibbles(c), _mm256_and_si256(_mm256_srli_epi16(b, 2), two));
  }
};

template <DType kType, typename Emit>
[[gnu::always_inline]] inline void unpack_k_panel(const PanelRows& rows, std::int64_t offset, const Emit& emit) {
  const __m256i head = rows.dwords(offset);
  const __m256 d = low_f16(head), dmin = high_f16(head);
  const ScalesK scales(rows, offset + 4);
  __m256i high[8];
  if constexpr (kType == DType::kQ5_K) rows.transpose32(offset + 16, high);
  const std::int64_t nibbles_offset = offset + (kType == DType::kQ5_K ? 48 : 16);
  const auto pair = [&]<int kPair>() __attribute__((always_inline)) {
    __m256i nibbles[8];
    rows.transpose32(nibbles_offset + 32 * kPair, nibbles);
    const auto block = [&]<int kBlockIndex>() __attribute__((always_inline)) {
      Panel panel;
      panel.d = _mm256_mul_ps(d, byte_as_float<kBlockIndex % 4>(scales.scale[kBlockIndex / 4]));
      const __m256 minimum = _mm256_mul_ps(dmin, byte_as_float<kBlockIndex % 4>(scales.minimum[kBlockIndex / 4]));
      panel.m = _mm256_xor_ps(minimum, _mm256_set1_ps(-0.0f));
      for (int j = 0; j < 8; ++j) {
        panel.q[j] = kBlockIndex % 2 == 0 ? low_nibbles(nibbles[j]) : high_nibbles(nibbles[j]);
        if constexpr (kType == DType::kQ5_K) panel.q[j] = _mm256_or_si256(panel.q[j], fifth_bit<kBlockIndex>(high[j]));
      }
      emit(kBlockIndex, panel);
    };
    block.template operator()<2 * kPair>();
    block.template operator()<2 * kPair + 1>();
  };
  pair.template operator()<0>();
  pair.template operator()<1>();
  pair.template operator()<2>();
  pair.template operator()<3>();
}

// Bits 2 * quarter and 2 * quarter + 1 of each byte, as bits 4 and 5.
template <int kQuarter>
inline __m256i fifth_and_sixth_bit(__m256i v) {
  const __m256i moved = kQuarter < 2 ? _mm256_slli_epi16(v, kQuarter == 0 ? 4 : 2) : _mm256_srli_epi16(v, kQuarter == 2 ? 0 : 2);
  return _mm256_and_si256(moved, _mm256_set1_epi8(48));
}

template <typename Emit>
[[gnu::always_inline]] inline void unpack_q6_k_panel(const PanelRows& rows, std::int64_t offset, const Emit& emit) {
  const __m256 d = high_f16(rows.dwords(offset + 206));
  __m256i scales[4];  // byte k of lane i of scales[j]: scale 4j + k of row i
  rows.transpose16(offset + 192, scales);
  for (int half = 0; half < 2; ++half) {
    __m256i low[2][8], high[8];
    rows.transpose32(offset + 64 * half, low[0]);
    rows.transpose32(offset + 64 * half + 32, low[1]);
    rows.transpose32(offset + 128 + 32 * half, high);
    const auto block = [&]<int kQuarter>() __attribute__((always_inline)) {
      Panel panel;
      panel.d = d;
      const __m256i scale = scales[2 * half + kQuarter / 2];
      for (int i = 0; i < 2; ++i) {  // the signed byte 2 * (quarter % 2) + i, twice as 16 bits
        const __m256i byte = _mm256_slli_epi32(scale, 24 - 8 * (2 * (kQuarter % 2) + i));
        const __m256i wide = _mm256_srai_epi32(byte, 24);
        panel.scale[i] = _mm256_blend_epi16(wide, _mm256_slli_epi32(wide, 16), 0xaa);
      }
      for (int j = 0; j < 8; ++j) {
        const __m256i nibbles = kQuarter < 2 ? low_nibbles(low[kQuarter % 2][j]) : high_nibbles(low[kQuarter % 2][j]);
        panel.q[j] = _mm256_or_si256(nibbles, fifth_and_sixth_bit<kQuarter>(high[j]));
      }
      emit(4 * half + kQuarter, panel);
    };
    block.template operator()<0>();
    block.template operator()<1>();
    block.template operator()<2>();
    block.template operator()<3>();
  }
}

template <DType kType, typename Emit>
[[gnu::always_inline]] inline void unpack_panels(const PanelRows& rows, std::int64_t offset, const Emit& emit) {
  if constexpr (has_half_scales(kType)) {
    unpack_q6_k_panel(rows, offset, emit);
  } else if constexpr (has_super_blocks(kType)) {
    unpack_k_panel<kType>(rows, offset, emit);
  } else {
    unpack_legacy_panel<kType>(rows, offset, emit);
  }
}

}  // namespace quire::cpu::QUIRE_ISA
