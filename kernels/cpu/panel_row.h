// One row of a panel as WeightBlocks: what embed and the portable matmul compute with. Vectors take sixteen rows at once
// (panel_vectors.h) and must come to the same integers and scales.
#pragma once

#include "kernels/cpu/panel.h"
#include "kernels/cpu/weight_block.h"

namespace quire::cpu::QUIRE_ISA {

inline std::uint32_t read_word(const std::uint8_t* p) {
  std::uint32_t word;
  __builtin_memcpy(&word, p, sizeof word);
  return word;
}

// Integers of a block, four to a word as the bytes of it; `words`: the block's vectors, from the row's word on.
template <DType kType>
inline void unpack_row_integers(const std::uint8_t* words, std::int8_t* q) {
  constexpr std::uint32_t kEach = 0x01010101u;
  const auto word = [&](int vector) { return read_word(words + vector * kWordVectorBytes); };
  std::uint32_t values[8];
  for (int j = 0; j < 8; ++j) {
    if constexpr (kType == DType::kQ8_0) {
      values[j] = word(j);
    } else {
      values[j] = (word(j % 4) >> (j < 4 ? 0 : 4)) & (15u * kEach);
      if constexpr (has_five_bits(kType)) values[j] |= ((word(4) >> j) & kEach) << 4;
      if constexpr (kType == DType::kQ6_K) values[j] |= ((word(4 + j / 4) >> (2 * (j % 4))) & (3u * kEach)) << 4;
    }
  }
  __builtin_memcpy(q, values, sizeof values);
  if constexpr (panel_offset(kType) != 0) {
    for (int i = 0; i < kBlock; ++i) q[i] = static_cast<std::int8_t>(q[i] - panel_offset(kType));
  }
}

// Block b (of 32 weights) of a row of a matrix in panels. `group`: the sixteen rows of which it is number `row`.
template <DType kType>
inline void unpack_panel_block(const std::uint8_t* group, int row, std::int64_t b, WeightBlock& out) {
  const std::uint8_t* panel = group + b / blocks_per_panel(kType) * panel_bytes(kType);
  const int j = static_cast<int>(b % blocks_per_panel(kType));
  unpack_row_integers<kType>(panel + panel_head_bytes(kType) + j * panel_words(kType) * kWordVectorBytes + 4 * row, out.q);
  const float d = read_f16(panel + 2 * row);
  out.d = d;
  if constexpr (kType == DType::kQ6_K) {
    for (int i = 0; i < 2; ++i) out.half_scale[i] = int{static_cast<std::int8_t>(panel[32 + (2 * j + i) * kPanelRows + row])};
  } else if constexpr (has_minimum(kType)) {
    const float m = read_f16(panel + 2 * (kPanelRows + row));
    if constexpr (!has_super_blocks(kType)) {
      out.m = m;
    } else {
      std::uint8_t s[12];
      for (int i = 0; i < 3; ++i) __builtin_memcpy(s + 4 * i, panel + 64 + i * kWordVectorBytes + 4 * row, 4);
      set_k_scales(s, j, d, m, out);
    }
  }
}

}  // namespace quire::cpu::QUIRE_ISA
