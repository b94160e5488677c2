// Rows of file blocks to panels, at load. Weights are taken four at a time, as the bytes of a word.
#include <array>

#include "core/math.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/panel.h"

namespace quire::cpu {
namespace {

using Words = std::array<std::uint32_t, 8>;  // 32 weights: byte k of word j is weight 4j + k, offset included

std::uint32_t word_at(const std::uint8_t* p) {
  std::uint32_t word;
  __builtin_memcpy(&word, p, sizeof word);
  return word;
}

constexpr std::uint32_t in_every_byte(std::uint32_t bits) { return bits * 0x01010101u; }

// Bits 4j to 4j + 3 of `bits`, as bit 4 of the bytes of word j.
std::uint32_t fifth_bits(std::uint32_t bits, unsigned j) {
  const std::uint32_t four = bits >> (4 * j) & 15u;
  return (four * 0x00204081u & in_every_byte(1)) << 4;
}

template <DType kType>
Words read_legacy(const std::uint8_t* block) {
  const std::uint8_t* p = block + (has_minimum(kType) ? 4 : 2);
  Words words{};
  if constexpr (kType == DType::kQ8_0) {
    for (std::size_t j = 0; j < 8; ++j) words[j] = word_at(p + 4 * j);
    return words;
  }
  const std::uint32_t high = has_five_bits(kType) ? word_at(p) : 0;
  if constexpr (has_five_bits(kType)) p += 4;
  for (std::size_t j = 0; j < 4; ++j) {
    words[j] = word_at(p + 4 * j) & in_every_byte(15);
    words[j + 4] = word_at(p + 4 * j) >> 4 & in_every_byte(15);
  }
  if constexpr (has_five_bits(kType)) {
    for (unsigned j = 0; j < 8; ++j) words[j] |= fifth_bits(high, j);
  }
  return words;
}

template <DType kType>
Words read_k(const std::uint8_t* super, unsigned b) {
  const std::uint8_t* high = super + 16;
  const std::uint8_t* nibbles = (kType == DType::kQ5_K ? high + 32 : high) + 32 * (b / 2);
  Words words{};
  for (std::size_t j = 0; j < 8; ++j) {
    words[j] = word_at(nibbles + 4 * j) >> (4 * (b % 2)) & in_every_byte(15);
    if constexpr (kType == DType::kQ5_K) words[j] |= (word_at(high + 4 * j) >> b & in_every_byte(1)) << 4;
  }
  return words;
}

Words read_q6_k(const std::uint8_t* super, unsigned b) {
  const std::uint8_t* low = super + 64 * (b / 4) + 32 * (b % 2);
  const std::uint8_t* high = super + 128 + 32 * (b / 4);
  Words words{};
  for (std::size_t j = 0; j < 8; ++j) {
    words[j] = word_at(low + 4 * j) >> (b % 4 < 2 ? 0 : 4) & in_every_byte(15);
    words[j] |= (word_at(high + 4 * j) >> (2 * (b % 4)) & in_every_byte(3)) << 4;
  }
  return words;
}

template <DType kType>
Words read_block(const std::uint8_t* file_block, unsigned b) {
  if constexpr (kType == DType::kQ6_K) return read_q6_k(file_block, b);
  if constexpr (has_super_blocks(kType)) return read_k<kType>(file_block, b);
  return read_legacy<kType>(file_block);
}

// `to`: word `row` of the block's vectors.
template <DType kType>
void write_words(const Words& words, std::uint8_t* to) {
  const auto put = [&](int vector, std::uint32_t word) { __builtin_memcpy(to + vector * kWordVectorBytes, &word, sizeof word); };
  if constexpr (kType == DType::kQ8_0) {
    for (int j = 0; j < 8; ++j) put(j, words[static_cast<std::size_t>(j)]);
    return;
  }
  std::uint32_t fifth = 0, more[2] = {};
  for (std::size_t j = 0; j < 4; ++j) {
    put(static_cast<int>(j), (words[j] & in_every_byte(15)) | (words[j + 4] & in_every_byte(15)) << 4);
  }
  for (std::size_t j = 0; j < 8; ++j) {
    if constexpr (has_five_bits(kType)) fifth |= (words[j] >> 4 & in_every_byte(1)) << j;
    if constexpr (kType == DType::kQ6_K) more[j / 4] |= (words[j] >> 4 & in_every_byte(3)) << (2 * (j % 4));
  }
  if constexpr (has_five_bits(kType)) put(4, fifth);
  if constexpr (kType == DType::kQ6_K) {
    put(4, more[0]);
    put(5, more[1]);
  }
}

template <DType kType>
void write_head(const std::uint8_t* file_block, int row, std::uint8_t* head) {
  const auto half = [&](int place, const std::uint8_t* from) {
    __builtin_memcpy(head + (place * kPanelRows + row) * 2, from, 2);
  };
  if constexpr (kType == DType::kQ6_K) {
    half(0, file_block + 208);
    for (int i = 0; i < 16; ++i) head[32 + i * kPanelRows + row] = file_block[192 + i];
    return;
  }
  half(0, file_block);
  if constexpr (has_minimum(kType)) half(1, file_block + 2);
  if constexpr (has_super_blocks(kType)) {
    for (int i = 0; i < 3; ++i) __builtin_memcpy(head + 64 + i * kWordVectorBytes + 4 * row, file_block + 4 + 4 * i, 4);
  }
}

// Sixteen rows, of which `rows` exist.
template <DType kType>
void pack_group(const TensorView& from, std::int64_t first, std::uint8_t* to) {
  constexpr unsigned kBlocks = blocks_per_panel(kType);
  constexpr int kBytes = panel_bytes(kType);
  const std::int64_t panels = from.shape[1] / block_elements(kType);
  const std::int64_t rows = from.shape[0] - first;
  if (rows < kPanelRows) __builtin_memset(to, 0, static_cast<std::size_t>(panels * kBytes));
  const std::uint8_t* const next = from.row_as<const std::uint8_t>(first + kPanelRows);
  for (std::int64_t p = 0; p < panels; ++p, to += kBytes) {
    // Sixteen short streams are too many for the hardware to follow.
    for (int line = 0; line < kBytes; line += 64) __builtin_prefetch(next + p * kBytes + line);
    for (int row = 0; row < kPanelRows && row < rows; ++row) {
      const std::uint8_t* const block = from.row_as<const std::uint8_t>(first + row) + p * block_bytes(kType);
      write_head<kType>(block, row, to);
      for (unsigned b = 0; b < kBlocks; ++b) {
        std::uint8_t* const words = to + panel_head_bytes(kType) + b * panel_words(kType) * kWordVectorBytes;
        write_words<kType>(read_block<kType>(block, b), words + 4 * row);
      }
    }
  }
}

using PackGroup = void (*)(const TensorView&, std::int64_t, std::uint8_t*);

PackGroup pack_function(DType type) {
  return for_quantized_type(type, []<DType kType>() -> PackGroup { return pack_group<kType>; });
}

}  // namespace

std::int64_t packed_bytes(DType type, std::int64_t rows, std::int64_t inner) {
  return round_up<std::int64_t>(rows, kPanelRows) * row_bytes(type, inner);
}

void pack_panels(const TensorView& from, void* to, ThreadPool& pool) {
  const PackGroup pack = pack_function(from.dtype);
  const std::int64_t groups = (from.shape[0] + kPanelRows - 1) / kPanelRows;
  const std::int64_t group_bytes = packed_bytes(from.dtype, kPanelRows, from.shape[1]);
  pool.parallel_for(groups, 16, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t g = begin; g < end; ++g) pack(from, g * kPanelRows, static_cast<std::uint8_t*>(to) + g * group_bytes);
  });
}

}  // namespace quire::cpu
