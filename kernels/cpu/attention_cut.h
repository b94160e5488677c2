// How a call of attention is cut into pieces that threads take in any order. The pieces change no bit: docs/numerics.md,
// "Attention".
#pragma once

#include "kernels/cpu/attention_scratch.h"
#include "kernels/cpu/simd.h"
#include "kernels/ops.h"

namespace quire::cpu::QUIRE_ISA {

inline constexpr std::int64_t kLeastElements = 32;  // of a shared row's sums, for a thread: a cache line of halves

// Positions, or elements of a head: [begin, end).
struct Span {
  std::int64_t begin, end;
  std::int64_t size() const { return end - begin; }
  bool operator==(const Span&) const = default;
};
inline Span intersect(Span a, Span b) { return {a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end}; }

// How the work is cut: a piece is some rows of q times some query heads of one KV head. The last pieces, too few for all threads,
// are split once more: by heads, each part of which reads all keys and values; or, where these are many and there are no other
// pieces, rows are shared, first by positions, then by elements.
struct Cut {
  std::int64_t first_row, end_row;  // of q
  std::int64_t rows_per_piece, heads_per_piece;
  std::int64_t row_pieces, head_pieces;  // head_pieces: per KV head
  std::int64_t whole, split, parts;      // pieces as they are, pieces that are split, and in how many parts
  bool shares_rows;
};

// Whether rows are worth a second round of tasks, and can be shared. Beside other pieces it does not pay: most is read once as it
// is.
inline bool can_share_rows(const AttentionArgs& args, const Cut& cut, std::int64_t max_kv_len) {
  constexpr std::int64_t kLeastPositions = 384;
  const std::int64_t seen = args.window > 0 && args.window < max_kv_len ? args.window : max_kv_len;
  return cut.whole == 0 && cut.rows_per_piece == 1 && seen >= kLeastPositions && args.kv.head_size % kLanes == 0 &&
         args.kv.head_size >= 2 * kLeastElements && cut.heads_per_piece <= kAttentionRows / 2;
}

inline Cut cut_work(const AttentionArgs& args, std::int64_t num_threads, std::int64_t max_kv_len) {
  constexpr std::int64_t kEnough = 4;  // pieces per thread
  const auto* q_indptr = args.q_indptr.as<std::int32_t>();
  const std::int64_t num_sequences = args.kv_lens.dim(0);
  const std::int64_t group = args.q.dim(1) / args.kv.num_heads;
  Cut cut{};
  cut.first_row = q_indptr[0];
  cut.end_row = q_indptr[num_sequences];
  const std::int64_t num_rows = cut.end_row - cut.first_row;
  cut.heads_per_piece = group < kAttentionRows ? group : kAttentionRows;
  cut.rows_per_piece = num_rows <= num_sequences ? 1 : kAttentionRows / cut.heads_per_piece;  // 1: decode
  cut.row_pieces = (num_rows + cut.rows_per_piece - 1) / cut.rows_per_piece;
  cut.head_pieces = (group + cut.heads_per_piece - 1) / cut.heads_per_piece;
  cut.whole = cut.row_pieces * args.kv.num_heads * cut.head_pieces;
  if (cut.whole < kEnough * num_threads) cut.split = cut.whole % num_threads;
  cut.whole -= cut.split;
  if (cut.split == 0) return cut;
  cut.shares_rows = can_share_rows(args, cut, max_kv_len);
  const std::int64_t most_parts = cut.shares_rows ? args.kv.head_size / kLeastElements : cut.heads_per_piece;
  cut.parts = (num_threads + cut.split - 1) / cut.split;
  if (cut.parts > most_parts) cut.parts = most_parts;
  return cut;
}

// The sequence that q's row `row` belongs to: the last one that begins at or before it.
inline std::int64_t sequence_of(const AttentionArgs& args, std::int64_t row) {
  const auto* q_indptr = args.q_indptr.as<std::int32_t>();
  std::int64_t low = 0, high = args.kv_lens.dim(0);
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (q_indptr[middle] <= row ? low : high) = middle;
  }
  return low;
}

inline std::int64_t longest(const AttentionArgs& args) {
  std::int64_t length = 0;
  for (std::int64_t s = 0; s < args.kv_lens.dim(0); ++s) {
    const std::int64_t kv_len = args.kv_lens.as<std::int32_t>()[s];
    if (kv_len > length) length = kv_len;
  }
  return length;
}

// The rows of q of a piece.
inline Span rows_of(const Cut& cut, std::int64_t piece, const AttentionArgs& args) {
  const std::int64_t row_piece = cut.row_pieces - 1 - piece / (args.kv.num_heads * cut.head_pieces);  // a prompt's longest first
  const std::int64_t row = cut.first_row + row_piece * cut.rows_per_piece;
  return intersect({row, row + cut.rows_per_piece}, {0, cut.end_row});
}

}  // namespace quire::cpu::QUIRE_ISA
