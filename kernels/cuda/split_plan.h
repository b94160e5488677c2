// How a step's attention is cut into work for the GPU: lists of items, made on the host from host arrays once a step, uploaded,
// and used by every layer of a KV group. Pure functions, tested without a GPU.
//
// An item is some packed rows of one sequence (see common.cuh) and a range of positions; with each KV head it is one block of the
// kernel's grid. Where a range is cut, every part writes a partial result and a second kernel combines them in ascending order.
// Positions are cut at multiples of kSplitAlignment, which no tile of a kernel crosses.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace quire::cuda {

inline constexpr int kSplitAlignment = 64;          // positions
inline constexpr int kDeterministicSegment = 2048;  // positions
inline constexpr int kDecodeRows = 16;              // packed rows of a decode item, at most
inline constexpr int kSmallPrefillTile = 64;        // packed rows of a prefill item, at most
inline constexpr int kLargePrefillTile = 128;
constexpr bool has_large_prefill_tile(int head_size) { return head_size == 64 || head_size == 128; }

// As the kernels read it.
struct WorkItem {
  std::int32_t sequence;   // below 0: padding of a list of fixed length, nothing to do
  std::int32_t first_row;  // packed rows [first_row, first_row + num_rows)
  std::int32_t num_rows;
  std::int32_t begin, end;  // positions [begin, end); what no row sees is left out by the kernel
  std::int32_t partial;  // first partial row: that of row r and KV head h is partial + h num_rows + r; below 0: straight to out
};

// Rows whose parts are to be combined; part i has its partial rows from partial + i Hkv num_rows on.
struct CombineItem {
  std::int32_t sequence;  // below 0: padding
  std::int32_t first_row, num_rows;
  std::int32_t partial;
  std::int32_t num_parts;
};

// One launch of each kernel. Waves run one after the other in the same workspace.
struct SplitWave {
  int first_item = 0, num_items = 0;
  int first_combine = 0, num_combines = 0;
};

struct SplitPlan {
  int row_tile = 0;  // the most rows of an item: a kDecodeRows, kSmallPrefillTile or kLargePrefillTile
  std::vector<WorkItem> items;
  std::vector<CombineItem> combines;
  std::vector<SplitWave> waves;
  std::int64_t num_partial_rows = 0;  // of the largest wave
};

enum class SplitRule : std::uint8_t {
  kBalanced,       // parts for about equal loads; a row's bits depend on the batch, within rounding
  kDeterministic,  // segments at fixed positions: a row's bits depend on the row alone
};

struct SplitShape {
  int num_heads = 0;     // Hq
  int num_kv_heads = 0;  // Hkv
  int head_size = 0;     // D
  int window = 0;        // 0: all
  int num_sms = 1;
  SplitRule rule = SplitRule::kBalanced;
  std::int64_t workspace_bytes = 0;  // to stay within, in waves where need be
};

// Bytes of workspace that `num_partial_rows` take: D floats each, and one float.
std::int64_t partial_bytes(std::int64_t num_partial_rows, int head_size);

// Lengths of a plan's lists.
struct SplitSize {
  std::int64_t num_items = 0, num_combines = 0, num_waves = 0;
};

// What no plan for `tokens` new tokens of `sequences` sequences of up to `context` positions exceeds; `row_tile`: the smallest
// that may be chosen.
SplitSize most_work(const SplitShape& shape, std::int64_t tokens, std::int64_t sequences, std::int64_t context, int row_tile);

// For decode_attention: every sequence's new tokens, at most a few each (one, or a draft to verify).
// Rule kBalanced only: the deterministic mode runs decode rows through prefill_attention.
SplitPlan plan_decode(const SplitShape& shape, std::span<const std::int32_t> q_indptr, std::span<const std::int32_t> kv_lens);

// For prefill_attention. With kDeterministic any mix of decode rows and chunks.
SplitPlan plan_prefill(const SplitShape& shape, std::span<const std::int32_t> q_indptr, std::span<const std::int32_t> kv_lens);

}  // namespace quire::cuda
