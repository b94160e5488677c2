// Panels: the form in which the CPU keeps quantised matrices (Layout::kPanels). Sixteen rows of weights lie side by side, in the
// order in which a product uses them, with the file's bits: a quarter of a block, four consecutive weights, of all sixteen rows
// fills one vector, so that the sums of sixteen rows end in the sixteen lanes of one. Fewer lanes take part of each vector.
//
// A matrix [M, K] is ceil(M / 16) groups of K / block_elements panels; rows beyond M are zeros. A panel is sixteen file blocks,
//   head:   the scales, [16] of each kind, little-endian f16 unless said otherwise
//             Q4_0, Q5_0, Q8_0: d      Q4_1, Q5_1: d, m
//             Q4_K, Q5_K: d, dmin, then the 12 bytes of 6-bit scales and minima as three words [3][16]
//             Q6_K: d, then int8 scales [16 halves of blocks][16]
//   then for each block of 32 weights (one, or eight in the K formats) its integers q[0..31], offset included, in words [n][16]:
//     4 to 6 bits: words j = 0..3, byte k: q[4j + k] & 15 | (q[4j + k + 16] & 15) << 4
//     5 bits:      one word more, byte k, bit j: bit 4 of q[4j + k]
//     6 bits:      two words more, v = 0, 1, byte k, bits 2j and 2j + 1: bits 4 and 5 of q[16v + 4j + k]
//     8 bits:      words j = 0..7, byte k: q[4j + k]
// so that a matrix has as many bytes as in the file, but for the rows that fill it up.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace quire::cpu {

inline constexpr int kWordVectorBytes = 4 * kPanelRows;  // a word of each row

constexpr bool has_minimum(DType t) { return t == DType::kQ4_1 || t == DType::kQ5_1 || t == DType::kQ4_K || t == DType::kQ5_K; }
constexpr bool has_half_scales(DType t) { return t == DType::kQ6_K; }
constexpr bool has_super_blocks(DType t) { return t == DType::kQ4_K || t == DType::kQ5_K || t == DType::kQ6_K; }
constexpr bool has_five_bits(DType t) { return t == DType::kQ5_0 || t == DType::kQ5_1 || t == DType::kQ5_K; }

// What a panel's integers are above those of the format: 4 to 6 bits are kept unsigned.
constexpr int panel_offset(DType t) { return t == DType::kQ4_0 ? 8 : t == DType::kQ5_0 ? 16 : t == DType::kQ6_K ? 32 : 0; }

constexpr int blocks_per_panel(DType t) { return block_elements(t) / 32; }
constexpr int panel_bytes(DType t) { return kPanelRows * block_bytes(t); }
constexpr int panel_words(DType t) { return t == DType::kQ8_0 ? 8 : t == DType::kQ6_K ? 6 : has_five_bits(t) ? 5 : 4; }
constexpr int panel_head_bytes(DType t) { return panel_bytes(t) - blocks_per_panel(t) * panel_words(t) * kWordVectorBytes; }
static_assert(panel_head_bytes(DType::kQ4_0) == 32 && panel_head_bytes(DType::kQ5_1) == 64);
static_assert(panel_head_bytes(DType::kQ5_K) == 64 + 3 * kWordVectorBytes && panel_head_bytes(DType::kQ6_K) == 32 + 256);

// function.template operator()<kType>() for a quantised `type`; its result. Inlined: kernel sources may share no function.
template <typename Function>
[[gnu::always_inline]] inline auto for_quantized_type(DType type, const Function& function) {
  switch (type) {
    case DType::kQ4_0:
      return function.template operator()<DType::kQ4_0>();
    case DType::kQ4_1:
      return function.template operator()<DType::kQ4_1>();
    case DType::kQ5_0:
      return function.template operator()<DType::kQ5_0>();
    case DType::kQ5_1:
      return function.template operator()<DType::kQ5_1>();
    case DType::kQ8_0:
      return function.template operator()<DType::kQ8_0>();
    case DType::kQ4_K:
      return function.template operator()<DType::kQ4_K>();
    case DType::kQ5_K:
      return function.template operator()<DType::kQ5_K>();
    default:
      return function.template operator()<DType::kQ6_K>();
  }
}

}  // namespace quire::cpu
