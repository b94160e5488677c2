#include "kernels/cuda/split_plan.h"

#include <algorithm>

#include "core/check.h"
#include "core/math.h"

namespace quire::cuda {
namespace {

// Positions below which a part's own cost outweighs its share: it writes and has combined D floats per row.
constexpr int kMinDecodePart = 256, kMinPrefillPart = 1024;
constexpr int kBlocksPerSm = 2;  // of either kernel that an SM holds, at least; where it holds one, they take turns

// Packed rows that are one item as long as their range is not cut.
struct RowRange {
  std::int32_t sequence, first_row, num_rows;
  std::int32_t begin, end;  // positions that some row sees
};

class Planner {
 public:
  Planner(const SplitShape& shape, std::span<const std::int32_t> q_indptr, std::span<const std::int32_t> kv_lens)
      : shape_(shape), q_indptr_(q_indptr), kv_lens_(kv_lens) {
    QUIRE_CHECK(q_indptr.size() == kv_lens.size() + 1);
    QUIRE_CHECK(shape.num_kv_heads > 0 && shape.num_heads % shape.num_kv_heads == 0 && shape.num_sms > 0);
    group_ = shape.num_heads / shape.num_kv_heads;
  }

  int choose_prefill_tile() const {
    if (!has_large_prefill_tile(shape_.head_size)) return kSmallPrefillTile;
    std::int64_t num_large = 0;
    for (std::size_t s = 0; s < kv_lens_.size(); ++s) num_large += ceil_div(num_rows(s), kLargePrefillTile);
    return num_large * shape_.num_kv_heads >= shape_.num_sms ? kLargePrefillTile : kSmallPrefillTile;
  }

  SplitPlan plan(int row_tile) {
    plan_.row_tile = row_tile;
    const std::vector<RowRange> ranges = row_ranges(row_tile);
    const int part_length = shape_.rule == SplitRule::kBalanced ? balanced_length(ranges) : 0;
    open_wave();
    for (const RowRange& range : ranges) add_fitting(range, part_length);
    close_wave();
    return std::move(plan_);
  }

 private:
  int num_rows(std::size_t s) const { return (q_indptr_[s + 1] - q_indptr_[s]) * group_; }

  std::vector<RowRange> row_ranges(int row_tile) const {
    std::vector<RowRange> ranges;
    for (std::size_t s = 0; s < kv_lens_.size(); ++s) {
      const int rows = num_rows(s);
      for (int first = 0; first < rows; first += row_tile)
        ranges.push_back(row_range(s, first, std::min(row_tile, rows - first)));
    }
    return ranges;
  }

  RowRange row_range(std::size_t s, int first, int count) const {
    const int first_position = kv_lens_[s] - (q_indptr_[s + 1] - q_indptr_[s]);
    const int first_seen = first_position + first / group_, last_seen = first_position + (first + count - 1) / group_;
    const int begin = shape_.window > 0 ? std::max(0, first_seen - shape_.window + 1) : 0;
    return {static_cast<std::int32_t>(s), first, count, begin, std::max(begin, last_seen + 1)};
  }

  // Fewer rows an item where all of them with their parts do not fit the workspace. In deterministic mode no bit depends on that.
  void add_fitting(const RowRange& range, int part_length) {
    const std::vector<std::int32_t> at = cuts(range, part_length);
    const auto num_parts = static_cast<std::int64_t>(at.size()) - 1;
    const std::int64_t needed = num_parts * shape_.num_kv_heads * range.num_rows;
    if (num_parts == 1 || range.num_rows == 1 || partial_bytes(needed, shape_.head_size) <= shape_.workspace_bytes) {
      return add(range, at);
    }
    const auto s = static_cast<std::size_t>(range.sequence);
    const int half = range.num_rows / 2;
    add_fitting(row_range(s, range.first_row, half), part_length);
    add_fitting(row_range(s, range.first_row + half, range.num_rows - half), part_length);
  }

  // Positions of a part so that all blocks the GPU holds at once get about equal shares of the step.
  int balanced_length(const std::vector<RowRange>& ranges) const {
    std::int64_t total = 0;
    for (const RowRange& range : ranges) total += range.end - range.begin;
    const std::int64_t blocks = std::int64_t{shape_.num_sms} * kBlocksPerSm;
    const int min_part = plan_.row_tile == kDecodeRows ? kMinDecodePart : kMinPrefillPart;
    const std::int64_t share = std::max<std::int64_t>(ceil_div(total * shape_.num_kv_heads, blocks), min_part);
    return static_cast<int>(round_up<std::int64_t>(share, kSplitAlignment));
  }

  // Where the range is cut: first and last are its ends.
  std::vector<std::int32_t> cuts(const RowRange& range, int part_length) const {
    const bool is_balanced = shape_.rule == SplitRule::kBalanced;
    const int unit = is_balanced ? kSplitAlignment : kDeterministicSegment;
    const int first = range.begin / unit * unit;
    int step = unit;
    if (is_balanced) {
      // Rounded, not up: a part half as long again costs less than another part of little.
      const int length = range.end - first, num_parts = std::max(1, (length + part_length / 2) / part_length);
      step = std::max(round_up(ceil_div(length, num_parts), unit), unit);
    }
    std::vector<std::int32_t> at{range.begin};
    for (int cut = first + step; cut < range.end; cut += step) at.push_back(cut);
    at.push_back(range.end);
    return at;
  }

  void add(const RowRange& range, const std::vector<std::int32_t>& at) {
    const int num_parts = static_cast<int>(at.size()) - 1;
    const std::int64_t part_rows = std::int64_t{shape_.num_kv_heads} * range.num_rows, needed = num_parts * part_rows;
    std::int64_t partial = -1;
    if (num_parts > 1) {
      if (partial_bytes(used_ + needed, shape_.head_size) > shape_.workspace_bytes) {
        close_wave();
        open_wave();
      }
      if (partial_bytes(needed, shape_.head_size) > shape_.workspace_bytes) {
        fail(ErrorCode::kInvalidArgument, "attention plan: workspace_bytes is {}, {} parts of {} rows need {}",
             shape_.workspace_bytes, num_parts, part_rows, partial_bytes(needed, shape_.head_size));
      }
      partial = used_;
      used_ += needed;
      plan_.combines.push_back({range.sequence, range.first_row, range.num_rows, static_cast<std::int32_t>(partial), num_parts});
    }
    for (int i = 0; i < num_parts; ++i) {
      const std::int64_t first = num_parts > 1 ? partial + i * part_rows : -1;
      plan_.items.push_back({range.sequence, range.first_row, range.num_rows, at[static_cast<std::size_t>(i)],
                             at[static_cast<std::size_t>(i) + 1], static_cast<std::int32_t>(first)});
    }
  }

  void open_wave() {
    used_ = 0;
    plan_.waves.push_back({static_cast<int>(plan_.items.size()), 0, static_cast<int>(plan_.combines.size()), 0});
  }
  void close_wave() {
    SplitWave& wave = plan_.waves.back();
    wave.num_items = static_cast<int>(plan_.items.size()) - wave.first_item;
    wave.num_combines = static_cast<int>(plan_.combines.size()) - wave.first_combine;
    plan_.num_partial_rows = std::max(plan_.num_partial_rows, used_);
    // The longest first: the short ones fill the gaps at the end.
    std::stable_sort(plan_.items.begin() + wave.first_item, plan_.items.end(),
                     [](const WorkItem& a, const WorkItem& b) { return a.end - a.begin > b.end - b.begin; });
    if (wave.num_items == 0) plan_.waves.pop_back();
  }

  SplitShape shape_;
  int group_ = 0;
  std::span<const std::int32_t> q_indptr_, kv_lens_;
  SplitPlan plan_;
  std::int64_t used_ = 0;  // partial rows of the open wave
};

}  // namespace

std::int64_t partial_bytes(std::int64_t num_partial_rows, int head_size) {
  return num_partial_rows * (head_size + 1) * static_cast<std::int64_t>(sizeof(float));
}

// A range of rows is cut into parts; halved first, while they do not fit the workspace. So a range that came of halving has at
// least half of the rows that fit. Balanced parts have the length of an equal share of the whole, or more: beyond one for each
// range, and a quarter for what alignment adds, there are no more of them than blocks that share the work.
SplitSize most_work(const SplitShape& shape, std::int64_t tokens, std::int64_t sequences, std::int64_t context, int row_tile) {
  const std::int64_t group = shape.num_heads / shape.num_kv_heads, rows = tokens * group;
  const bool is_balanced = shape.rule == SplitRule::kBalanced;
  const std::int64_t seen =
      shape.window > 0 ? std::min<std::int64_t>(context, std::int64_t{shape.window} + kLargePrefillTile) : context;
  const std::int64_t shortest = !is_balanced ? kDeterministicSegment : row_tile == kDecodeRows ? kMinDecodePart : kMinPrefillPart;
  const std::int64_t parts = seen / shortest + 2;
  const std::int64_t part_bytes = parts * shape.num_kv_heads * partial_bytes(1, shape.head_size);
  const std::int64_t fitting = shape.workspace_bytes / part_bytes, tile = kLargePrefillTile;
  std::int64_t ranges = sequences + rows / row_tile;
  const bool halves = fitting < tile;
  if (halves) ranges += rows / std::max<std::int64_t>((fitting + 1) / 2, 1);
  std::int64_t items = ranges * parts;
  if (is_balanced && !halves) {
    const std::int64_t blocks = std::int64_t{shape.num_sms} * kBlocksPerSm;
    items = std::min(items, ranges + ranges / 4 + 1 + ceil_div<std::int64_t>(blocks, shape.num_kv_heads));
  }
  return {items, ranges, ranges + 1};
}

SplitPlan plan_decode(const SplitShape& shape, std::span<const std::int32_t> q_indptr, std::span<const std::int32_t> kv_lens) {
  QUIRE_CHECK(shape.rule == SplitRule::kBalanced);
  return Planner(shape, q_indptr, kv_lens).plan(kDecodeRows);
}

SplitPlan plan_prefill(const SplitShape& shape, std::span<const std::int32_t> q_indptr, std::span<const std::int32_t> kv_lens) {
  Planner planner(shape, q_indptr, kv_lens);
  return planner.plan(planner.choose_prefill_tile());
}

}  // namespace quire::cuda
