// Causal attention over paged keys and values (Vaswani et al. 2017, arXiv:1706.03762, eq. 1), prefill and decode alike.
// A tile is some query rows of one sequence times some heads of one KV head; it goes through its positions in groups of sixteen.
// A tile of one query row reads keys and values as they are stored; larger ones widen a group once for all their rows. Two passes
// with all scores of the tile in memory, so that every order is one of absolute positions (docs/numerics.md): neither tiles,
// threads, block size nor the place of blocks can change a bit.
#include "kernels/cpu/attention_cut.h"
#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/attention_scratch.h"
#include "kernels/cpu/math_f32.h"
#include "kernels/cpu/variant.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

constexpr std::int64_t kGroup = kAttentionGroup;
static_assert(kGroup == kLanes, "lane = position modulo 16");

std::int64_t group_of(std::int64_t position) { return position / kGroup * kGroup; }  // where its group begins

struct Tile {
  const AttentionArgs& args;
  std::int64_t first_row = 0, num_rows = 0;    // rows of q
  std::int64_t first_head = 0, num_heads = 0;  // query heads
  std::int64_t kv_head = 0;
  std::int64_t first_position = 0;      // of first_row; negative if the sequence has more rows than positions
  const std::int32_t* pages = nullptr;  // of the sequence
  std::int64_t head_stride = 0;         // head size, padded to whole vectors
  FloatRows scores{}, q{}, out{};       // rows by packed()
  float* kv = nullptr;                  // a group's keys or values, widened

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

FloatRows rows_from(FloatRows rows, std::int64_t row, std::int64_t column) { return {rows.row(row) + column, rows.stride}; }

template <typename From>
const typename From::Stored* stored_row(const Tile& tile, const void* pool, std::int64_t position) {
  const KvLayer& layer = tile.args.kv;
  return static_cast<const typename From::Stored*>(pool) + tile.pages[position / layer.block_size] * layer.block_stride +
         (tile.kv_head * layer.block_size + position % layer.block_size) * layer.head_size;
}

// Calls body(rows, position) for the pieces of `positions` that lie together in a block.
template <typename From, typename Body>
[[gnu::always_inline]] inline void for_each_run(const Tile& tile, const void* pool, Span positions, const Body& body) {
  const std::int64_t block_size = tile.args.kv.block_size;
  for (std::int64_t position = positions.begin; position < positions.end;) {
    const std::int64_t end = intersect(positions, {position, (position / block_size + 1) * block_size}).end;
    body(StoredRows<From>{stored_row<From>(tile, pool, position), tile.args.kv.head_size, static_cast<int>(end - position)},
         position);
    position = end;
  }
}

// A block holds few consecutive bytes of a head, too few for the processor to foresee the next ones: they are asked for while a
// group is taken to tile.kv, two groups ahead, and into the second cache, for which more requests can be under way.
constexpr std::int64_t kAhead = 2 * kGroup;
template <typename Stored>
[[gnu::always_inline]] inline void fetch_elements(const Stored* first, std::int64_t count) {
  constexpr std::int64_t kCacheLine = 64;
  const auto* const end = reinterpret_cast<const char*>(first + count);
  for (const auto* line = reinterpret_cast<const char*>(first); line < end; line += kCacheLine) __builtin_prefetch(line, 0, 2);
}
template <typename From>
void fetch(const Tile& tile, const void* pool, Span positions) {
  for_each_run<From>(tile, pool, intersect(positions, tile.visible()), [](const StoredRows<From>& rows, std::int64_t) {
    fetch_elements(rows.first, rows.count * rows.stride);
    asm volatile("");  // an effect, without which GCC takes this for a function that does nothing and drops its calls
  });
}
// The same of some elements of each row.
template <typename From>
void fetch(const Tile& tile, const void* pool, Span positions, Span elements) {
  for_each_run<From>(tile, pool, intersect(positions, tile.visible()), [&](const StoredRows<From>& rows, std::int64_t) {
    for (int i = 0; i < rows.count; ++i) fetch_elements(rows.first + i * rows.stride + elements.begin, elements.size());
    asm volatile("");
  });
}

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
  if (positions.end - positions.begin < kGroup) {
    for (std::int64_t i = 0; i < kGroup * tile.head_stride; ++i) tile.kv[i] = 0.0f;
  }
  for_each_run<From>(tile, pool, positions, [&](const StoredRows<From>& rows, std::int64_t position) {
    fetch<From>(tile, pool, {position + kAhead, position + kAhead + rows.count});
    for (int i = 0; i < rows.count; ++i)
      widen_row<From>(rows.first + i * rows.stride, rows.stride, tile.kv + (position + i) % kGroup * tile.head_stride);
  });
}

// Copies rows of one group, as they are stored, to tile.kv. Computing on the pool itself would wait for memory.
template <typename From>
StoredRows<From> stage(const Tile& tile, const void* pool, const StoredRows<From>& rows, std::int64_t position) {
  fetch<From>(tile, pool, {position + kAhead, position + kAhead + rows.count});
  __builtin_memcpy(tile.kv, rows.first, static_cast<std::size_t>(rows.count * rows.stride) * sizeof *rows.first);
  return {reinterpret_cast<const typename From::Stored*>(tile.kv), rows.stride, rows.count};
}

// The same of some elements of each row.
template <typename From>
StoredRows<From> stage(const Tile& tile, const void* pool, const StoredRows<From>& rows, std::int64_t position, Span elements) {
  if (elements.size() == rows.stride) return stage(tile, pool, rows, position);
  fetch<From>(tile, pool, {position + kAhead, position + kAhead + rows.count}, elements);
  auto* copy = reinterpret_cast<char*>(tile.kv);
  const auto bytes = static_cast<std::size_t>(elements.size()) * sizeof *rows.first;
  for (int i = 0; i < rows.count; ++i, copy += bytes) {
    __builtin_memcpy(copy, rows.first + i * rows.stride + elements.begin, bytes);
  }
  return {reinterpret_cast<const typename From::Stored*>(tile.kv), elements.size(), rows.count};
}

// Calls body(group) for the groups of sixteen positions that hold some of `positions`.
template <typename Body>
void for_each_group(Span positions, const Body& body) {
  for (std::int64_t group = group_of(positions.begin); group < positions.end; group += kGroup) body(group);
}

// The raw scores of one query row at `positions`: keys as they are stored.
template <typename From>
void score_one_row(const Tile& tile, Span positions) {
  for_each_group(positions, [&](std::int64_t group) {
    const Span seen = intersect(positions, {group, group + kGroup});
    for_each_run<From>(tile, tile.args.kv.keys, seen, [&](const StoredRows<From>& rows, std::int64_t position) {
      const StoredRows<From> keys = stage(tile, tile.args.kv.keys, rows, position);
      for_each_rows(tile.num_heads, [&]<int kRows>(std::int64_t head) {
        score_rows<From, kRows>(rows_from(tile.q, head, 0), keys, tile.head_stride,
                                rows_from(tile.scores, head, position - tile.base()));
      });
    });
  });
}

// Some elements of one query row's sums.
template <typename From>
void weigh_one_row(const Tile& tile, Span elements) {
  for_each_group(tile.visible(), [&](std::int64_t group) {
    const Span seen = intersect(tile.visible(), {group, group + kGroup});
    for_each_run<From>(tile, tile.args.kv.values, seen, [&](const StoredRows<From>& rows, std::int64_t position) {
      const StoredRows<From> values = stage(tile, tile.args.kv.values, rows, position, elements);
      for_each_rows(tile.num_heads, [&]<int kRows>(std::int64_t head) {
        weigh_rows<From, kRows>(rows_from(tile.scores, head, position - tile.base()), values, elements.size(),
                                rows_from(tile.out, head, elements.begin));
      });
    });
  });
}

// The raw scores of many query rows. Rows that see a group only in part get scores for all of it, which exponentiate() hides.
template <typename From>
void score_many_rows(const Tile& tile) {
  for_each_group(tile.visible(), [&](std::int64_t group) {
    const Span positions = intersect(tile.visible(), {group, group + kGroup});
    widen_group<From>(tile, tile.args.kv.keys, positions);
    std::int64_t first = 0, end = tile.num_rows;  // rows that see some of the group
    while (first < end && tile.visible(first).end <= group) ++first;
    while (end > first && tile.visible(end - 1).begin >= group + kGroup) --end;
    for_each_rows((end - first) * tile.num_heads, [&]<int kRows>(std::int64_t row) {
      row += first * tile.num_heads;
      score_rows<FromF32, kRows>(rows_from(tile.q, row, 0), {tile.kv, tile.head_stride, kGroup}, tile.head_stride,
                                 rows_from(tile.scores, row, group - tile.base()));
    });
  });
}

template <typename From>
void weigh_many_rows(const Tile& tile) {
  // Rows [first, end), which see the same positions of a group.
  const auto weigh = [&](std::int64_t first, std::int64_t end, Span seen) {
    const StoredRows<FromF32> values{tile.kv + seen.begin % kGroup * tile.head_stride, tile.head_stride,
                                     static_cast<int>(seen.end - seen.begin)};
    for_each_rows((end - first) * tile.num_heads, [&]<int kRows>(std::int64_t row) {
      row += first * tile.num_heads;
      weigh_rows<FromF32, kRows>(rows_from(tile.scores, row, seen.begin - tile.base()), values, tile.head_stride,
                                 rows_from(tile.out, row, 0));
    });
  };
  for_each_group(tile.visible(), [&](std::int64_t group) {
    const auto seen_by = [&](std::int64_t row) { return intersect(tile.visible(row), {group, group + kGroup}); };
    widen_group<From>(tile, tile.args.kv.values, intersect(tile.visible(), {group, group + kGroup}));
    for (std::int64_t row = 0; row < tile.num_rows;) {
      const Span seen = seen_by(row);
      const std::int64_t first = row++;
      if (seen.begin >= seen.end) continue;
      while (row < tile.num_rows && seen_by(row) == seen) ++row;
      weigh(first, row, seen);
    }
  });
}

// Raw scores at columns [begin, end) (whole groups, of which `seen` are visible) to exponentials; returns their sum.
float exponentiate(const AttentionArgs& args, float* scores, Span columns, Span seen) {
  constexpr float kInfinity = __builtin_inff();
  const F32x16 scale = F32x16::set1(args.scale);
  const F32x16 cap = F32x16::set1(args.softcap);
  F32x16 tops = F32x16::set1(-kInfinity);  // NaN is left out here; its exponential carries it into the sum
  for (std::int64_t j = columns.begin; j < columns.end; j += kLanes) {
    F32x16 score = F32x16::load(scores + j) * scale;
    if (args.softcap > 0) score = softcapped(score, cap);
    score.store(scores + j);
    if (j < seen.begin || j + kLanes > seen.end) {
      for (std::int64_t i = j; i < j + kLanes; ++i) scores[i] = i < seen.begin || i >= seen.end ? -kInfinity : scores[i];
      score = F32x16::load(scores + j);
    }
    tops = max(score, tops);
  }
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
      const std::int64_t packed = tile.packed(row, head);
      widen_row<FromF32>(q + head * size, size, tile.q.row(packed));
      for (std::int64_t d = 0; d < tile.head_stride; ++d) tile.out.row(packed)[d] = 0.0f;
    }
  }
}

// The exponentials of all rows of a tile; their sums by packed().
void exponentiate(const Tile& tile, float* sums) {
  const std::int64_t base = tile.base();
  for (std::int64_t row = 0; row < tile.num_rows; ++row) {
    const Span seen = tile.visible(row);
    if (seen.end <= seen.begin) continue;
    const Span columns{group_of(seen.begin) - base, group_of(seen.end - 1) + kGroup - base};
    for (std::int64_t h = 0; h < tile.num_heads; ++h) {
      const std::int64_t packed = tile.packed(row, h);
      sums[packed] = exponentiate(tile.args, tile.scores.row(packed), columns, {seen.begin - base, seen.end - base});
    }
  }
}

// out / sum; a row that sees nothing, or whose every score is -infinity, is zero.
void store_rows(const Tile& tile, const float* sums, Span elements) {
  for (std::int64_t row = 0; row < tile.num_rows; ++row) {
    for (std::int64_t h = 0; h < tile.num_heads; ++h) {
      const float* const weighted = tile.out.row(tile.packed(row, h));
      const float sum = sums[tile.packed(row, h)];
      float* const out = tile.args.out.row_as<float>(tile.first_row + row) + (tile.first_head + h) * tile.args.kv.head_size;
      const F32x16 divisor = F32x16::set1(sum == 0.0f ? 1.0f : sum);
      for (std::int64_t d = elements.begin; d < elements.end; d += kLanes) {
        store_part(F32x16::load(weighted + d) / divisor, out + d, elements.end - d < kLanes ? elements.end - d : kLanes);
      }
    }
  }
}

bool is_read_as_stored(const Tile& tile) { return tile.num_rows == 1 && tile.head_stride == tile.args.kv.head_size; }

template <typename From>
void attend(const Tile& tile) {
  const std::int64_t base = tile.base();
  const Span elements{0, tile.args.kv.head_size};
  fetch<From>(tile, tile.args.kv.keys, {base, base + kAhead});
  load_queries(tile);
  is_read_as_stored(tile) ? score_one_row<From>(tile, tile.visible()) : score_many_rows<From>(tile);

  fetch<From>(tile, tile.args.kv.values, {base, base + kAhead});
  float sums[kAttentionRows] = {};
  exponentiate(tile, sums);
  is_read_as_stored(tile) ? weigh_one_row<From>(tile, elements) : weigh_many_rows<From>(tile);
  store_rows(tile, sums, elements);
}

// A tile of one row shared by two rounds of tasks: the scores at some positions,
template <typename From>
void score_part(const Tile& tile, Span positions) {
  fetch<From>(tile, tile.args.kv.keys, {positions.begin, positions.begin + kAhead});
  load_queries(tile);
  score_one_row<From>(tile, positions);
}

// then some elements of the sums, from all scores, which each task copies: exponentials take their place.
template <typename From>
void weigh_part(Tile tile, FloatRows scores, Span elements) {
  const std::int64_t base = tile.base();
  const std::int64_t columns = tile.visible().size() > 0 ? tile.visible().end - base : 0;
  fetch<From>(tile, tile.args.kv.values, {base, base + kAhead}, elements);
  for (std::int64_t h = 0; h < tile.num_heads; ++h) {
    __builtin_memcpy(scores.row(h), tile.scores.row(h), static_cast<std::size_t>(columns) * sizeof(float));
    for (std::int64_t d = elements.begin; d < elements.end; ++d) tile.out.row(h)[d] = 0.0f;
  }
  tile.scores = scores;
  float sums[kAttentionRows] = {};
  exponentiate(tile, sums);
  weigh_one_row<From>(tile, elements);
  store_rows(tile, sums, elements);
}

// function.template operator()<From>() for the type of the pool.
template <typename Function>
void for_stored_type(DType type, const Function& function) {
  switch (type) {
    case DType::kF32:
      return function.template operator()<FromF32>();
    case DType::kBF16:
      return function.template operator()<FromBf16>();
    default:
      return function.template operator()<FromF16>();
  }
}

Tile tile_in(float* memory, std::int64_t max_kv_len, const AttentionArgs& args) {
  Tile tile{.args = args};
  tile.head_stride = (args.kv.head_size + kLanes - 1) / kLanes * kLanes;
  tile.scores = {memory, attention_score_stride(max_kv_len)};
  tile.q = {tile.scores.row(kAttentionRows), tile.head_stride};
  tile.out = {tile.q.first + std::int64_t{kAttentionRows} * kMaxHeadSize, tile.head_stride};
  tile.kv = tile.out.first + std::int64_t{kAttentionRows} * kMaxHeadSize;
  return tile;
}

// The heads of part `part` of `parts` of a piece.
void place_heads(const Cut& cut, std::int64_t piece, std::int64_t part, std::int64_t parts, Tile& tile) {
  const std::int64_t group = tile.args.q.dim(1) / tile.args.kv.num_heads;
  const std::int64_t first = piece % cut.head_pieces * cut.heads_per_piece;  // within the group
  const std::int64_t count = intersect({first, first + cut.heads_per_piece}, {0, group}).size();
  tile.kv_head = piece / cut.head_pieces % tile.args.kv.num_heads;
  tile.first_head = tile.kv_head * group + first + part * count / parts;
  tile.num_heads = (part + 1) * count / parts - part * count / parts;
}

// Those of q's rows [row, end) that belong to sequence s.
void place_rows(std::int64_t s, std::int64_t row, std::int64_t end, Tile& tile) {
  const std::int64_t sequence_end = tile.args.q_indptr.as<std::int32_t>()[s + 1];
  tile.first_row = row;
  tile.num_rows = (sequence_end < end ? sequence_end : end) - row;
  tile.first_position = tile.args.kv_lens.as<std::int32_t>()[s] - (sequence_end - row);
  tile.pages = tile.args.page_indices.as<std::int32_t>() + tile.args.page_indptr.as<std::int32_t>()[s];
}

// Works through part `part` of `parts` of a piece, one tile per sequence that has rows in it.
void attend_piece(const Cut& cut, std::int64_t piece, std::int64_t part, std::int64_t parts, Tile& tile) {
  place_heads(cut, piece, part, parts, tile);
  if (tile.num_heads == 0) return;
  auto [row, end] = rows_of(cut, piece, tile.args);
  for (std::int64_t s = sequence_of(tile.args, row); row < end; ++s) {
    place_rows(s, row, end, tile);
    if (tile.num_rows <= 0) continue;
    for_stored_type(tile.args.kv.dtype, [&]<typename From>() { attend<From>(tile); });
    row += tile.num_rows;
  }
}

// The tiles of a shared row: of thread `thread`, with the scores that all threads share in the upper half of the rows of another
// thread's memory, that of number `split`.
class SharedRows {
 public:
  SharedRows(const Cut& cut, const AttentionArgs& args, float* scratch, std::int64_t max_kv_len)
      : cut_(cut), args_(args), scratch_(scratch), max_kv_len_(max_kv_len) {}

  Tile own_tile(std::int64_t thread) const {
    return tile_in(scratch_ + thread * attention_thread_floats(max_kv_len_), max_kv_len_, args_);
  }
  void score(std::int64_t split, std::int64_t part, int thread) const {
    const Tile tile = shared_tile(split, thread);
    const std::int64_t base = tile.base(), groups = (tile.visible().end - base + kGroup - 1) / kGroup;
    const Span part_positions{base + part * groups / cut_.parts * kGroup, base + (part + 1) * groups / cut_.parts * kGroup};
    const Span positions = intersect(part_positions, tile.visible());
    if (positions.size() <= 0) return;
    for_stored_type(args_.kv.dtype, [&]<typename From>() { score_part<From>(tile, positions); });
  }
  void weigh(std::int64_t split, std::int64_t part, int thread) const {
    const std::int64_t vectors = args_.kv.head_size / kLanes;
    const Span elements{part * vectors / cut_.parts * kLanes, (part + 1) * vectors / cut_.parts * kLanes};
    const FloatRows own_scores = own_tile(thread).scores;
    for_stored_type(args_.kv.dtype, [&]<typename From>() { weigh_part<From>(shared_tile(split, thread), own_scores, elements); });
  }

 private:
  Tile shared_tile(std::int64_t split, std::int64_t thread) const {
    Tile tile = own_tile(thread);
    tile.scores.first = own_tile(split).scores.row(kAttentionRows / 2);
    place_heads(cut_, cut_.whole + split, 0, 1, tile);
    const auto [row, end] = rows_of(cut_, cut_.whole + split, args_);
    place_rows(sequence_of(args_, row), row, end, tile);
    return tile;
  }

  const Cut& cut_;
  const AttentionArgs& args_;
  float* scratch_;
  std::int64_t max_kv_len_;
};

}  // namespace

void attention(const AttentionArgs& args, ThreadPool& pool, void* scratch) {
  if (args.kv_lens.dim(0) == 0) return;
  const std::int64_t max_kv_len = longest(args);
  const Cut cut = cut_work(args, pool.num_threads(), max_kv_len);
  const SharedRows shared(cut, args, static_cast<float*>(scratch), max_kv_len);
  pool.parallel_for(cut.whole + cut.split * cut.parts, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
    Tile tile = shared.own_tile(thread);
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t part = i - cut.whole;
      if (part < 0) {
        attend_piece(cut, i, 0, 1, tile);
      } else if (cut.shares_rows) {
        shared.score(part / cut.parts, part % cut.parts, thread);
      } else {
        attend_piece(cut, cut.whole + part / cut.parts, part % cut.parts, cut.parts, tile);
      }
    }
  });
  if (!cut.shares_rows) return;
  pool.parallel_for(cut.split * cut.parts, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
    for (std::int64_t part = begin; part < end; ++part) shared.weigh(part / cut.parts, part % cut.parts, thread);
  });
}

}  // namespace quire::cpu::QUIRE_ISA
