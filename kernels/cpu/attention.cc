// Causal attention over paged keys and values (Vaswani et al. 2017, arXiv:1706.03762, eq. 1), prefill and decode alike.
// A tile is some query rows of one sequence times some heads of one KV head; keys and values are widened once per tile, in groups
// of sixteen positions. Two passes with all scores of the tile in memory, so that every order is one of absolute positions
// (docs/numerics.md): neither tiles, threads, block size nor the place of blocks can change a bit.
#include "kernels/cpu/attention_scratch.h"
#include "kernels/cpu/math_f32.h"
#include "kernels/cpu/variant.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

constexpr std::int64_t kGroup = kAttentionGroup;
static_assert(kGroup == kLanes, "lane = position modulo 16");

// Positions [begin, end).
struct Span {
  std::int64_t begin, end;
};
Span intersect(Span a, Span b) { return {a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end}; }
std::int64_t group_of(std::int64_t position) { return position / kGroup * kGroup; }  // where its group begins

struct Tile {
  const AttentionArgs& args;
  std::int64_t first_row, num_rows;    // rows of q
  std::int64_t first_head, num_heads;  // query heads
  std::int64_t kv_head;
  std::int64_t first_position;  // of first_row; negative if the sequence has more rows than positions
  const std::int32_t* pages;    // of the sequence
  std::int64_t head_stride;     // head size, padded to whole vectors
  std::int64_t score_stride;
  float *scores, *q, *out, *kv;

  Span visible(std::int64_t row) const {
    const std::int64_t position = first_position + row;
    const std::int64_t begin = args.window > 0 ? position - args.window + 1 : 0;
    return {begin > 0 ? begin : 0, position + 1};  // empty: end <= 0
  }
  Span visible() const { return {visible(0).begin, visible(num_rows - 1).end}; }
  std::int64_t base() const { return group_of(visible().begin); }  // position of column 0 of `scores`
  // Row and head of the tile to the row of scores, q and out.
  std::int64_t packed(std::int64_t row, std::int64_t head) const { return row * num_heads + head; }
};

struct FromF32 {
  using Stored = float;
  static F32x16 load(const float* p) { return F32x16::load(p); }
};
struct FromF16 {
  using Stored = std::uint16_t;
  static F32x16 load(const std::uint16_t* p) { return F32x16::load_f16(p); }
};
struct FromBf16 {
  using Stored = std::uint16_t;
  static F32x16 load(const std::uint16_t* p) { return F32x16::load_bf16(p); }
};

template <typename From>
void widen_row(const typename From::Stored* row, std::int64_t size, float* out) {
  std::int64_t d = 0;
  for (; d + kLanes <= size; d += kLanes) From::load(row + d).store(out + d);
  if (d == size) return;
  typename From::Stored tail[kLanes] = {};
  for (std::int64_t i = 0; d + i < size; ++i) tail[i] = row[d + i];
  From::load(tail).store(out + d);
}

// Widens rows of keys or values at `positions`, all of one group, to their rows of `tile.kv`; the other rows become zero.
template <typename From>
void widen_group(const Tile& tile, const void* pool, Span positions) {
  const KvLayer& layer = tile.args.kv;
  if (positions.end - positions.begin < kGroup) {
    for (std::int64_t i = 0; i < kGroup * tile.head_stride; ++i) tile.kv[i] = 0.0f;
  }
  const std::int64_t size = layer.head_size;
  for (std::int64_t position = positions.begin; position < positions.end;) {
    const std::int64_t index = position / layer.block_size;
    const std::int64_t block_begin = index * layer.block_size;
    const Span run = intersect(positions, {position, block_begin + layer.block_size});  // what one block holds of it
    const auto* row = static_cast<const typename From::Stored*>(pool) + tile.pages[index] * layer.block_stride +
                      (tile.kv_head * layer.block_size + position - block_begin) * size;
    for (; position < run.end; ++position, row += size)
      widen_row<From>(row, size, tile.kv + position % kGroup * tile.head_stride);
  }
}

using WidenGroup = void (*)(const Tile&, const void* pool, Span positions);
WidenGroup widen_for(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return widen_group<FromF32>;
    case DType::kBF16:
      return widen_group<FromBf16>;
    default:
      return widen_group<FromF16>;
  }
}

// scores[0 to 16) = q . k of a whole group; sixteen lanes over the head each.
void score_group(const float* q, const float* kv, std::int64_t head_stride, float* scores) {
  for (std::int64_t j = 0; j < kGroup; j += 4) {
    F32x16 sums[4] = {F32x16::zero(), F32x16::zero(), F32x16::zero(), F32x16::zero()};
    const float* k = kv + j * head_stride;
    for (std::int64_t d = 0; d < head_stride; d += kLanes) {
      const F32x16 query = F32x16::load(q + d);
      for (int i = 0; i < 4; ++i) sums[i] = fma(query, F32x16::load(k + i * head_stride + d), sums[i]);
    }
    reduce_add4(sums, scores + j);
  }
}

// out[0 to 16 N) = fma(weight_j, v_j, out) for `count` positions in ascending order.
template <std::size_t N>
void add_weighted(const float* weights, std::int64_t count, const float* v, std::int64_t head_stride, float* out) {
  F32x16 sums[N];
  for (std::size_t i = 0; i < N; ++i) sums[i] = F32x16::load(out + i * kLanes);
  for (std::int64_t j = 0; j < count; ++j, v += head_stride) {
    const F32x16 weight = F32x16::set1(weights[j]);
    for (std::size_t i = 0; i < N; ++i) sums[i] = fma(weight, F32x16::load(v + i * kLanes), sums[i]);
  }
  for (std::size_t i = 0; i < N; ++i) sums[i].store(out + i * kLanes);
}

void weigh_group(const float* weights, std::int64_t count, const float* v, std::int64_t head_stride, float* out) {
  std::int64_t d = 0;
  for (; d + 4 * kLanes <= head_stride; d += 4 * kLanes) add_weighted<4>(weights, count, v + d, head_stride, out + d);
  for (; d < head_stride; d += kLanes) add_weighted<1>(weights, count, v + d, head_stride, out + d);
}

// Calls body(group, row, positions) with the positions of the group that the row sees, for every group of the tile and every row
// that sees any, after the group's keys or values stand in tile.kv.
template <typename Body>
void for_each_group(const Tile& tile, const void* pool, const Body& body) {
  const WidenGroup widen = widen_for(tile.args.kv.dtype);
  const Span all = tile.visible();
  for (std::int64_t group = group_of(all.begin); group < all.end; group += kGroup) {
    widen(tile, pool, intersect(all, {group, group + kGroup}));
    for (std::int64_t row = 0; row < tile.num_rows; ++row) {
      const Span seen = intersect(tile.visible(row), {group, group + kGroup});
      if (seen.begin < seen.end) body(group, row, seen);
    }
  }
}

// Raw scores at columns [begin, end) (whole groups, of which `seen` are visible) to exponentials; returns their sum.
float exponentiate(const AttentionArgs& args, float* scores, Span columns, Span seen) {
  constexpr float kInfinity = __builtin_inff();
  const F32x16 scale = F32x16::set1(args.scale);
  const F32x16 cap = F32x16::set1(args.softcap);
  for (std::int64_t j = columns.begin; j < columns.end; j += kLanes) {
    const F32x16 score = F32x16::load(scores + j) * scale;
    (args.softcap > 0 ? softcapped(score, cap) : score).store(scores + j);
  }
  for (std::int64_t j = columns.begin; j < seen.begin; ++j) scores[j] = -kInfinity;
  for (std::int64_t j = seen.end; j < columns.end; ++j) scores[j] = -kInfinity;

  F32x16 tops = F32x16::set1(-kInfinity);  // NaN is left out here; its exponential carries it into the sum
  for (std::int64_t j = columns.begin; j < columns.end; j += kLanes) tops = max(F32x16::load(scores + j), tops);
  float lanes[kLanes];
  tops.store(lanes);
  float top = lanes[0];
  for (int i = 1; i < kLanes; ++i) top = lanes[i] > top ? lanes[i] : top;
  if (top == -kInfinity) top = 0.0f;  // nothing has weight: exponentials are 0, not NaN

  F32x16 sum = F32x16::zero();
  for (std::int64_t j = columns.begin; j < columns.end; j += kLanes) {
    const F32x16 weight = exp(F32x16::load(scores + j) - F32x16::set1(top));
    weight.store(scores + j);
    sum = sum + weight;
  }
  return reduce_add(sum);
}

void load_queries(const Tile& tile) {
  const std::int64_t size = tile.args.kv.head_size;
  for (std::int64_t row = 0; row < tile.num_rows; ++row) {
    const float* q = tile.args.q.row_as<float>(tile.first_row + row) + tile.first_head * size;
    for (std::int64_t head = 0; head < tile.num_heads; ++head) {
      float* packed = tile.q + tile.packed(row, head) * tile.head_stride;
      widen_row<FromF32>(q + head * size, size, packed);
    }
  }
  for (std::int64_t i = 0; i < tile.num_rows * tile.num_heads * tile.head_stride; ++i) tile.out[i] = 0.0f;
}

// out / sum; a row that sees nothing, or whose every score is -infinity, is zero.
void store_row(const Tile& tile, std::int64_t row, std::int64_t head, float sum) {
  const std::int64_t size = tile.args.kv.head_size;
  const float* weighted = tile.out + tile.packed(row, head) * tile.head_stride;
  float* out = tile.args.out.row_as<float>(tile.first_row + row) + (tile.first_head + head) * size;
  const F32x16 divisor = F32x16::set1(sum == 0.0f ? 1.0f : sum);
  for (std::int64_t d = 0; d < size; d += kLanes) {
    store_part(F32x16::load(weighted + d) / divisor, out + d, size - d < kLanes ? size - d : kLanes);
  }
}

void attend(const Tile& tile) {
  load_queries(tile);
  const std::int64_t base = tile.base();
  const auto scores_of = [&](std::int64_t row, std::int64_t head) {
    return tile.scores + tile.packed(row, head) * tile.score_stride;
  };

  for_each_group(tile, tile.args.kv.keys, [&](std::int64_t group, std::int64_t row, Span) {
    for (std::int64_t h = 0; h < tile.num_heads; ++h) {
      score_group(tile.q + tile.packed(row, h) * tile.head_stride, tile.kv, tile.head_stride, scores_of(row, h) + group - base);
    }
  });

  float sums[kAttentionRows] = {};
  for (std::int64_t row = 0; row < tile.num_rows; ++row) {
    const Span seen = tile.visible(row);
    if (seen.end <= seen.begin) continue;
    const Span columns{group_of(seen.begin) - base, group_of(seen.end - 1) + kGroup - base};
    for (std::int64_t h = 0; h < tile.num_heads; ++h) {
      sums[tile.packed(row, h)] = exponentiate(tile.args, scores_of(row, h), columns, {seen.begin - base, seen.end - base});
    }
  }

  for_each_group(tile, tile.args.kv.values, [&](std::int64_t group, std::int64_t row, Span seen) {
    const float* v = tile.kv + (seen.begin - group) * tile.head_stride;
    for (std::int64_t h = 0; h < tile.num_heads; ++h) {
      weigh_group(scores_of(row, h) + seen.begin - base, seen.end - seen.begin, v, tile.head_stride,
                  tile.out + tile.packed(row, h) * tile.head_stride);
    }
  });

  for (std::int64_t row = 0; row < tile.num_rows; ++row) {
    for (std::int64_t h = 0; h < tile.num_heads; ++h) store_row(tile, row, h, sums[tile.packed(row, h)]);
  }
}

// How the work is cut: a piece is some rows of q times some query heads of one KV head.
struct Cut {
  std::int64_t first_row, end_row;  // of q
  std::int64_t rows_per_piece, heads_per_piece;
  std::int64_t row_pieces, head_pieces;  // head_pieces: per KV head
};
Cut cut_work(const AttentionArgs& args, int num_threads) {
  const auto* q_indptr = args.q_indptr.as<std::int32_t>();
  const std::int64_t num_sequences = args.kv_lens.dim(0);
  const std::int64_t group = args.q.dim(1) / args.kv.num_heads;
  Cut cut{};
  cut.first_row = q_indptr[0];
  cut.end_row = q_indptr[num_sequences];
  const std::int64_t num_rows = cut.end_row - cut.first_row;
  const bool decode = num_rows <= num_sequences;
  cut.heads_per_piece = group < kAttentionRows ? group : kAttentionRows;
  if (decode && num_rows * args.kv.num_heads < num_threads) cut.heads_per_piece = (cut.heads_per_piece + 1) / 2;  // more pieces
  cut.rows_per_piece = decode ? 1 : kAttentionRows / cut.heads_per_piece;
  cut.row_pieces = (num_rows + cut.rows_per_piece - 1) / cut.rows_per_piece;
  cut.head_pieces = (group + cut.heads_per_piece - 1) / cut.heads_per_piece;
  return cut;
}

// The sequence that q's row `row` belongs to: the last one that begins at or before it.
std::int64_t sequence_of(const AttentionArgs& args, std::int64_t row) {
  const auto* q_indptr = args.q_indptr.as<std::int32_t>();
  std::int64_t low = 0, high = args.kv_lens.dim(0);
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (q_indptr[middle] <= row ? low : high) = middle;
  }
  return low;
}

std::int64_t longest(const AttentionArgs& args) {
  std::int64_t length = 0;
  for (std::int64_t s = 0; s < args.kv_lens.dim(0); ++s) {
    const std::int64_t kv_len = args.kv_lens.as<std::int32_t>()[s];
    if (kv_len > length) length = kv_len;
  }
  return length;
}

Tile tile_in(float* memory, std::int64_t max_kv_len, const AttentionArgs& args) {
  Tile tile{args, 0, 0, 0, 0, 0, 0, nullptr, 0, 0, nullptr, nullptr, nullptr, nullptr};
  tile.head_stride = (args.kv.head_size + kLanes - 1) / kLanes * kLanes;
  tile.score_stride = attention_score_stride(max_kv_len);
  tile.scores = memory;
  tile.q = tile.scores + kAttentionRows * tile.score_stride;
  tile.out = tile.q + std::int64_t{kAttentionRows} * kMaxHeadSize;
  tile.kv = tile.out + std::int64_t{kAttentionRows} * kMaxHeadSize;
  return tile;
}

// Works through a piece, one tile per sequence that has rows in it.
void attend_piece(const Cut& cut, std::int64_t piece, Tile& tile) {
  const AttentionArgs& args = tile.args;
  const auto* q_indptr = args.q_indptr.as<std::int32_t>();
  const std::int64_t kv_heads = args.kv.num_heads;
  const std::int64_t group = args.q.dim(1) / kv_heads;
  const std::int64_t row_piece = cut.row_pieces - 1 - piece / (kv_heads * cut.head_pieces);  // a prompt's longest rows first
  const std::int64_t first_head = piece % cut.head_pieces * cut.heads_per_piece;             // within the group
  tile.kv_head = piece / cut.head_pieces % kv_heads;
  tile.first_head = tile.kv_head * group + first_head;
  tile.num_heads = intersect({first_head, first_head + cut.heads_per_piece}, {0, group}).end - first_head;
  std::int64_t row = cut.first_row + row_piece * cut.rows_per_piece;
  const std::int64_t end = intersect({row, row + cut.rows_per_piece}, {0, cut.end_row}).end;
  for (std::int64_t s = sequence_of(args, row); row < end; ++s) {
    const std::int64_t sequence_end = q_indptr[s + 1];
    tile.first_row = row;
    tile.num_rows = (sequence_end < end ? sequence_end : end) - row;
    if (tile.num_rows <= 0) continue;
    tile.first_position = args.kv_lens.as<std::int32_t>()[s] - (sequence_end - row);
    tile.pages = args.page_indices.as<std::int32_t>() + args.page_indptr.as<std::int32_t>()[s];
    attend(tile);
    row += tile.num_rows;
  }
}

}  // namespace

void attention(const AttentionArgs& args, ThreadPool& pool, void* scratch) {
  if (args.kv_lens.dim(0) == 0) return;
  const std::int64_t max_kv_len = longest(args);
  const Cut cut = cut_work(args, pool.num_threads());
  const std::int64_t num_pieces = cut.row_pieces * args.kv.num_heads * cut.head_pieces;
  pool.parallel_for(num_pieces, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
    Tile tile = tile_in(static_cast<float*>(scratch) + thread * attention_thread_floats(max_kv_len), max_kv_len, args);
    for (std::int64_t piece = begin; piece < end; ++piece) attend_piece(cut, piece, tile);
  });
}

}  // namespace quire::cpu::QUIRE_ISA
