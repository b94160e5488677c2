// Rows of file blocks to panels, at load. Four rows are worked on together, a word (the bytes of four weights) of each in the
// lanes of a vector of 16 bytes, which the baseline of every machine has: panels keep the file's bits, so all there is to do is
// to move them. Rows that a group lacks are blocks of zeros, which become zeros.
#include <algorithm>
#include <array>
#include <vector>

#include "core/math.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/panel.h"

namespace quire::cpu {
namespace {

using Four [[gnu::vector_size(16)]] = std::uint32_t;  // a word of each of four rows
using Rows = std::array<const std::uint8_t*, 4>;      // a file block of each
using GroupRows = std::array<const std::uint8_t*, kPanelRows>;

constexpr std::array<std::uint8_t, 256> kNoBlock{};  // longer than any block
constexpr unsigned kVectorBytes = sizeof(Four);

constexpr std::uint32_t in_every_byte(std::uint32_t bits) { return bits * 0x01010101u; }

// The word at byte `at` of each row.
Four one_word(const Rows& rows, unsigned at) {
  std::array<std::uint32_t, 4> words;
  for (std::size_t r = 0; r < 4; ++r) __builtin_memcpy(&words[r], rows[r] + at, sizeof words[r]);
  return Four{words[0], words[1], words[2], words[3]};
}

// Four words from byte `at` on: a matrix of four by four, transposed.
void four_words(const Rows& rows, unsigned at, Four* words) {
  Four a, b, c, d;
  __builtin_memcpy(&a, rows[0] + at, sizeof a);
  __builtin_memcpy(&b, rows[1] + at, sizeof b);
  __builtin_memcpy(&c, rows[2] + at, sizeof c);
  __builtin_memcpy(&d, rows[3] + at, sizeof d);
  const Four ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Four cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5), cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  words[0] = __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5);
  words[1] = __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7);
  words[2] = __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
  words[3] = __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
}

void eight_words(const Rows& rows, unsigned at, Four* words) {
  four_words(rows, at, words);
  four_words(rows, at + kVectorBytes, words + 4);
}

// Swaps the bits of `mask` with those `distance` above.
Four swap_bits(Four x, unsigned distance, std::uint32_t mask) {
  const Four difference = ((x >> distance) ^ x) & mask;
  return x ^ difference ^ (difference << distance);
}

// Bit 4j + k becomes bit 8k + j: of a bit's number, the two lower digits go before the three upper ones, in four exchanges of two
// digits (4 and 1, 3 and 0, 2 and 1, 1 and 0).
Four fifth_bits(Four bits) {
  bits = swap_bits(bits, 14, 0x0000ccccu);
  bits = swap_bits(bits, 7, 0x00aa00aau);
  bits = swap_bits(bits, 2, 0x0c0c0c0cu);
  return swap_bits(bits, 1, 0x22222222u);
}

// Words of a panel from four rows' words of eight bytes each: `shift` 0 takes the low four bits of both, 4 the high ones.
Four nibbles(Four first, Four second, unsigned shift) {
  constexpr std::uint32_t kLow = in_every_byte(15);
  return ((first >> shift) & kLow) | (((second >> shift) & kLow) << 4);
}

void put(std::uint8_t* to, unsigned vector, Four words) {
  __builtin_memcpy(to + vector * kWordVectorBytes, &words, sizeof words);
}

template <DType kType>
void write_legacy(const Rows& rows, std::uint8_t* to) {
  constexpr unsigned kScales = has_minimum(kType) ? 4 : 2;
  constexpr unsigned kIntegers = has_five_bits(kType) ? kScales + 4 : kScales;
  constexpr unsigned kVectors = kType == DType::kQ8_0 ? 8 : 4;
  Four words[kVectors];  // nibbles are paired in a panel as in the file
  for (unsigned v = 0; v < kVectors; v += 4) four_words(rows, kIntegers + v * 4, words + v);
  for (unsigned v = 0; v < kVectors; ++v) put(to, v, words[v]);
  if constexpr (has_five_bits(kType)) put(to, 4, fifth_bits(one_word(rows, kScales)));
}

template <DType kType>
void write_k(const Rows& rows, unsigned b, std::uint8_t* to) {
  constexpr unsigned kHigh = 16;
  Four words[8];
  eight_words(rows, (kType == DType::kQ5_K ? kHigh + 32 : kHigh) + 32 * (b / 2), words);
  for (unsigned j = 0; j < 4; ++j) put(to, j, nibbles(words[j], words[j + 4], 4 * (b % 2)));
  if constexpr (kType == DType::kQ5_K) {
    eight_words(rows, kHigh, words);
    Four fifth{};
    for (unsigned j = 0; j < 8; ++j) fifth |= ((words[j] >> b) & in_every_byte(1)) << j;
    put(to, 4, fifth);
  }
}

void write_q6_k(const Rows& rows, unsigned b, std::uint8_t* to) {
  Four words[8];
  eight_words(rows, 64 * (b / 4) + 32 * (b % 2), words);
  for (unsigned j = 0; j < 4; ++j) put(to, j, nibbles(words[j], words[j + 4], b % 4 < 2 ? 0 : 4));
  eight_words(rows, 128 + 32 * (b / 4), words);
  for (unsigned v = 0; v < 2; ++v) {
    Four more{};
    for (unsigned j = 0; j < 4; ++j) more |= ((words[4 * v + j] >> (2 * (b % 4))) & in_every_byte(3)) << (2 * j);
    put(to, 4 + v, more);
  }
}

// The integers of block b of four rows; `to`: the block's vectors, from the word of the first row on.
template <DType kType>
void write_words(const Rows& rows, unsigned b, std::uint8_t* to) {
  if constexpr (kType == DType::kQ6_K) {
    write_q6_k(rows, b, to);
  } else if constexpr (has_super_blocks(kType)) {
    write_k<kType>(rows, b, to);
  } else {
    write_legacy<kType>(rows, to);
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

// One panel from sixteen file blocks.
template <DType kType>
void pack_panel(const GroupRows& blocks, std::uint8_t* to) {
  constexpr unsigned kBlocks = blocks_per_panel(kType);
  for (int row = 0; row < kPanelRows; ++row) write_head<kType>(blocks[static_cast<std::size_t>(row)], row, to);
  for (int row = 0; row < kPanelRows; row += 4) {
    const auto* const first = blocks.data() + row;
    const Rows rows{first[0], first[1], first[2], first[3]};
    std::uint8_t* const words = to + panel_head_bytes(kType) + 4 * row;
    for (unsigned b = 0; b < kBlocks; ++b) {
      write_words<kType>(rows, b, words + b * panel_words(kType) * kWordVectorBytes);
    }
  }
}

// Sixteen rows, of which some may not exist.
template <DType kType>
void pack_group(const TensorView& from, std::int64_t first, std::uint8_t* to) {
  constexpr int kBytes = panel_bytes(kType);
  const std::int64_t panels = from.shape[1] / block_elements(kType);
  const std::int64_t rows = from.shape[0] - first;
  GroupRows blocks;
  for (int row = 0; row < kPanelRows; ++row) {
    blocks[static_cast<std::size_t>(row)] = row < rows ? from.row_as<const std::uint8_t>(first + row) : kNoBlock.data();
  }
  const std::uint8_t* const next = from.row_as<const std::uint8_t>(first + kPanelRows);
  for (std::int64_t p = 0; p < panels; ++p, to += kBytes) {
    // Sixteen short streams are too many for the hardware to follow.
    for (int line = 0; line < kBytes; line += 64) __builtin_prefetch(next + p * kBytes + line);
    pack_panel<kType>(blocks, to);
    for (int row = 0; row < kPanelRows && row < rows; ++row) blocks[static_cast<std::size_t>(row)] += block_bytes(kType);
  }
}

using PackGroup = void (*)(const TensorView&, std::int64_t, std::uint8_t*);

PackGroup pack_function(DType type) {
  return for_quantized_type(type, []<DType kType>() -> PackGroup { return pack_group<kType>; });
}

std::int64_t num_groups(const PackArgs& matrix) { return ceil_div<std::int64_t>(matrix.from.shape[0], kPanelRows); }

void pack_groups(const PackArgs& matrix, std::int64_t begin, std::int64_t end) {
  const PackGroup pack = pack_function(matrix.from.dtype);
  const std::int64_t group_bytes = packed_bytes(matrix.from.dtype, kPanelRows, matrix.from.shape[1]);
  auto* const to = static_cast<std::uint8_t*>(matrix.to);
  for (std::int64_t g = begin; g < end; ++g) pack(matrix.from, g * kPanelRows, to + g * group_bytes);
}

}  // namespace

std::int64_t packed_bytes(DType type, std::int64_t rows, std::int64_t inner) {
  return round_up<std::int64_t>(rows, kPanelRows) * row_bytes(type, inner);
}

void pack_panels(std::span<const PackArgs> matrices, ThreadPool& pool) {
  constexpr std::int64_t kGrain = 8;          // groups, of some ten kilobytes each
  std::vector<std::int64_t> first_groups{0};  // of each matrix, and the end
  for (const PackArgs& matrix : matrices) first_groups.push_back(first_groups.back() + num_groups(matrix));
  pool.parallel_for(first_groups.back(), kGrain, [&](std::int64_t begin, std::int64_t end, int) {
    const auto after = std::upper_bound(first_groups.begin(), first_groups.end(), begin);
    for (auto i = static_cast<std::size_t>(after - first_groups.begin() - 1); begin < end; ++i) {
      const std::int64_t matrix_end = std::min(end, first_groups[i + 1]);
      pack_groups(matrices[i], begin - first_groups[i], matrix_end - first_groups[i]);
      begin = matrix_end;
    }
  });
}

}  // namespace quire::cpu
