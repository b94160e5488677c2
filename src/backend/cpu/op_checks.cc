#include "backend/cpu/op_checks.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/check.h"
#include "core/math.h"
#include "kernels/cpu/kernels.h"

namespace quire {
namespace {

using Dims = std::initializer_list<std::int64_t>;

// Whether `view` has this type and shape and, if it holds anything, memory.
void require(const char* what, const TensorView& view, DType dtype, Dims dims) {
  const bool shaped = view.rank == static_cast<int>(dims.size()) && std::equal(dims.begin(), dims.end(), view.shape.begin());
  if (shaped && view.dtype == dtype && (view.data != nullptr || view.num_elements() == 0)) [[likely]]
    return;
  fail(ErrorCode::kInternal, "{} is {}{}, must be {} [{}]", what, view.describe(), view.data == nullptr ? " without memory" : "",
       to_string(dtype), fmt::join(dims, ", "));
}

// As above for lists of numbers, which kernels read as arrays.
void require_list(const char* what, const TensorView& view, DType dtype, std::int64_t size) {
  require(what, view, dtype, {size});
  QUIRE_CHECK_MSG(view.is_dense(), "{} has gaps", what);
}

// Panels are quantised weights, group after group.
void require_layout(const char* what, const TensorView& matrix) {
  if (matrix.layout == Layout::kRows) [[likely]]
    return;
  QUIRE_CHECK_MSG(is_quantized(matrix.dtype) && matrix.is_dense(), "{} is {}{}: only quantised matrices without gaps can be",
                  what, matrix.describe(), matrix.is_dense() ? "" : ", with gaps");
}

void require_rank(const char* what, const TensorView& view, int rank) {
  QUIRE_CHECK_MSG(view.rank == rank, "{} is {}, must have {} dimensions", what, view.describe(), rank);
}

void require_indices(const char* what, const TensorView& list, std::int64_t limit) {
  for (std::int64_t i = 0; i < list.dim(0); ++i) {
    const std::int32_t index = list.as<std::int32_t>()[i];
    QUIRE_CHECK_MSG(index >= 0 && index < limit, "{}[{}] is {}, must be in [0, {})", what, i, index, limit);
  }
}

void check_layer(const char* op, const KvLayer& kv) {
  QUIRE_CHECK_MSG(kv.dtype == DType::kF16 || kv.dtype == DType::kBF16 || kv.dtype == DType::kF32,
                  "{}: the pool's type is {}, must be F16, BF16 or F32", op, to_string(kv.dtype));
  QUIRE_CHECK_MSG(kv.keys != nullptr && kv.values != nullptr, "{}: the pool has no memory", op);
  QUIRE_CHECK_MSG(kv.block_size > 0 && kv.num_heads > 0, "{}: block_size {}, num_heads {}", op, kv.block_size, kv.num_heads);
  QUIRE_CHECK_MSG(kv.head_size > 0 && kv.head_size <= cpu::kMaxHeadSize, "{}: head_size is {}, must be 1 to {}", op, kv.head_size,
                  cpu::kMaxHeadSize);
  const std::int64_t elements = std::int64_t{kv.num_heads} * kv.block_size * kv.head_size;
  QUIRE_CHECK_MSG(kv.block_stride >= elements, "{}: block_stride is {}, but the heads of a block have {} elements", op,
                  kv.block_stride, elements);
}

// Sequence s: rows of q in order and inside, no more positions than its pages hold.
void check_sequence(const AttentionArgs& args, std::int64_t s) {
  const auto* rows = args.q_indptr.as<std::int32_t>() + s;
  const auto* pages = args.page_indptr.as<std::int32_t>() + s;
  const std::int64_t kv_len = args.kv_lens.as<std::int32_t>()[s];
  QUIRE_CHECK_MSG(rows[0] >= 0 && rows[0] <= rows[1] && rows[1] <= args.q.dim(0),
                  "attention: sequence {} has rows [{}, {}) of {}", s, rows[0], rows[1], args.q.dim(0));
  QUIRE_CHECK_MSG(pages[0] >= 0 && pages[0] <= pages[1] && pages[1] <= args.page_indices.dim(0),
                  "attention: sequence {} has page entries [{}, {}) of {}", s, pages[0], pages[1], args.page_indices.dim(0));
  QUIRE_CHECK_MSG(kv_len >= 0 && kv_len <= std::int64_t{pages[1] - pages[0]} * args.kv.block_size,
                  "attention: sequence {} has kv_len {}, but {} blocks of {}", s, kv_len, pages[1] - pages[0],
                  args.kv.block_size);
}

void check_sample_row(std::int64_t r, const SampleRow& row) {
  QUIRE_CHECK_MSG(row.num_top >= 0 && row.num_top <= SampleResult::kMaxTop, "sample: num_top of row {} is {}", r, row.num_top);
  QUIRE_CHECK_MSG(row.num_counts == 0 || row.counts != nullptr, "sample: row {} has {} counts, but no list", r, row.num_counts);
  QUIRE_CHECK_MSG(row.num_biases == 0 || row.biases != nullptr, "sample: row {} has {} biases, but no list", r, row.num_biases);
}

}  // namespace

void check_args(const EmbedArgs& args) {
  require_rank("embed: table", args.table, 2);
  require_layout("embed: table", args.table);
  require_rank("embed: out", args.out, 2);
  require_list("embed: token_ids", args.token_ids, DType::kI32, args.out.dim(0));
  require("embed: out", args.out, DType::kF32, {args.token_ids.dim(0), args.table.dim(1)});
  require_indices("embed: token_ids", args.token_ids, args.table.dim(0));
}

void check_args(const RmsNormArgs& args) {
  require_rank("rms_norm: x", args.x, 2);
  const std::int64_t rows = args.x.dim(0), width = args.x.dim(1);
  require("rms_norm: x", args.x, DType::kF32, {rows, width});
  require("rms_norm: weight", args.weight, DType::kF32, {width});
  require("rms_norm: out", args.out, DType::kF32, {rows, width});
}

void check_args(const AddRmsNormArgs& args) {
  require_rank("add_rms_norm: x", args.x, 2);
  const std::int64_t rows = args.x.dim(0), width = args.x.dim(1);
  require("add_rms_norm: x", args.x, DType::kF32, {rows, width});
  require("add_rms_norm: residual", args.residual, DType::kF32, {rows, width});
  require("add_rms_norm: weight", args.weight, DType::kF32, {width});
  require("add_rms_norm: out", args.out, DType::kF32, {rows, width});
  QUIRE_CHECK_MSG(rows == 0 || args.out.data != args.residual.data, "add_rms_norm: out is residual");
}

void check_args(const AddArgs& args) {
  require_rank("add: x", args.x, 2);
  require("add: x", args.x, DType::kF32, {args.x.dim(0), args.x.dim(1)});
  require("add: residual", args.residual, DType::kF32, {args.x.dim(0), args.x.dim(1)});
}

void check_args(const MatmulArgs& args) {
  require_rank("matmul: x", args.x, 2);
  const std::int64_t rows = args.x.dim(0), inner = args.x.dim(1);
  require("matmul: x", args.x, DType::kF32, {rows, inner});
  QUIRE_CHECK_MSG(args.num_projections >= 1 && args.num_projections <= MatmulArgs::kMaxProjections, "matmul: {} projections",
                  args.num_projections);
  QUIRE_CHECK_MSG(args.activation_terms == 1 || args.activation_terms == 2, "matmul: {} activation terms", args.activation_terms);
  for (int i = 0; i < args.num_projections; ++i) {
    const Projection& p = args.projections[i];
    require_rank("matmul: weight", p.weight, 2);
    require_layout("matmul: weight", p.weight);
    require("matmul: weight", p.weight, p.weight.dtype, {p.weight.dim(0), inner});
    QUIRE_CHECK_MSG(inner % block_elements(p.weight.dtype) == 0, "matmul: weight is {}, not of whole blocks",
                    p.weight.describe());
    require("matmul: out", p.out, DType::kF32, {rows, p.weight.dim(0)});
    if (p.bias.data != nullptr) require("matmul: bias", p.bias, DType::kF32, {p.weight.dim(0)});
  }
}

void check_args(const RopeTableArgs& args) {
  require_rank("rope_table: positions", args.positions, 1);
  require_rank("rope_table: inv_freq", args.inv_freq, 1);
  require_list("rope_table: positions", args.positions, DType::kI32, args.positions.dim(0));
  require_list("rope_table: inv_freq", args.inv_freq, DType::kF32, args.inv_freq.dim(0));
  require("rope_table: cos_sin", args.cos_sin, DType::kF32, {args.positions.dim(0), args.inv_freq.dim(0), 2});
}

void check_args(const RopeArgs& args) {
  require_rank("rope: x", args.x, 3);
  require_rank("rope: cos_sin", args.cos_sin, 3);
  const std::int64_t tokens = args.x.dim(0), head_size = args.x.dim(2), pairs = args.cos_sin.dim(1);
  require("rope: x", args.x, DType::kF32, {tokens, args.x.dim(1), head_size});
  require("rope: cos_sin", args.cos_sin, DType::kF32, {tokens, pairs, 2});
  QUIRE_CHECK_MSG(2 * pairs <= head_size && head_size <= cpu::kMaxHeadSize,
                  "rope: {} elements of a head of {} (at most {}) rotate", 2 * pairs, head_size, cpu::kMaxHeadSize);
}

void check_args(const AppendKvArgs& args) {
  check_layer("append_kv", args.kv);
  require_rank("append_kv: slots", args.slots, 1);
  const std::int64_t tokens = args.slots.dim(0);
  require_list("append_kv: slots", args.slots, DType::kI64, tokens);
  require("append_kv: k", args.k, DType::kF32, {tokens, args.kv.num_heads, args.kv.head_size});
  require("append_kv: v", args.v, DType::kF32, {tokens, args.kv.num_heads, args.kv.head_size});
}

void check_args(const AttentionArgs& args) {
  check_layer("attention", args.kv);
  require_rank("attention: q", args.q, 3);
  require_rank("attention: kv_lens", args.kv_lens, 1);
  require_rank("attention: page_indices", args.page_indices, 1);
  const std::int64_t rows = args.q.dim(0), heads = args.q.dim(1), num_sequences = args.kv_lens.dim(0);
  require("attention: q", args.q, DType::kF32, {rows, heads, args.kv.head_size});
  require("attention: out", args.out, DType::kF32, {rows, heads, args.kv.head_size});
  QUIRE_CHECK_MSG(rows == 0 || args.out.data != args.q.data, "attention: out is q");
  QUIRE_CHECK_MSG(heads > 0 && heads % args.kv.num_heads == 0, "attention: {} query heads are no multiple of {} KV heads", heads,
                  args.kv.num_heads);
  QUIRE_CHECK_MSG(args.window >= 0 && args.softcap >= 0.0f, "attention: window {}, softcap {}", args.window, args.softcap);
  require_list("attention: q_indptr", args.q_indptr, DType::kI32, num_sequences + 1);
  require_list("attention: kv_lens", args.kv_lens, DType::kI32, num_sequences);
  require_list("attention: page_indptr", args.page_indptr, DType::kI32, num_sequences + 1);
  require_list("attention: page_indices", args.page_indices, DType::kI32, args.page_indices.dim(0));
  for (std::int64_t s = 0; s < num_sequences; ++s) check_sequence(args, s);
}

void check_args(const GatedActivationArgs& args) {
  require_rank("gated_activation: gate", args.gate, 2);
  const std::int64_t rows = args.gate.dim(0), width = args.gate.dim(1);
  require("gated_activation: gate", args.gate, DType::kF32, {rows, width});
  require("gated_activation: up", args.up, DType::kF32, {rows, width});
  require("gated_activation: out", args.out, DType::kF32, {rows, width});
}

void check_args(const GatherRowsArgs& args) {
  require_rank("gather_rows: x", args.x, 2);
  require_rank("gather_rows: rows", args.rows, 1);
  require_list("gather_rows: rows", args.rows, DType::kI32, args.rows.dim(0));
  require("gather_rows: out", args.out, args.x.dtype, {args.rows.dim(0), args.x.dim(1)});
  require_indices("gather_rows: rows", args.rows, args.x.dim(0));
}

void check_args(const SoftcapArgs& args) {
  require_rank("softcap: logits", args.logits, 2);
  require("softcap: logits", args.logits, DType::kF32, {args.logits.dim(0), args.logits.dim(1)});
  QUIRE_CHECK_MSG(args.cap > 0.0f, "softcap: cap is {}, must be positive", args.cap);
}

void check_args(const SampleArgs& args) {
  require_rank("sample: logits", args.logits, 2);
  const std::int64_t rows = args.logits.dim(0);
  require("sample: logits", args.logits, DType::kF32, {rows, args.logits.dim(1)});
  QUIRE_CHECK_MSG(rows == 0 || (args.rows != nullptr && args.results != nullptr), "sample: {} rows without memory", rows);
  for (std::int64_t r = 0; r < rows; ++r) check_sample_row(r, args.rows[r]);
}

void check_args(const CopyBlocksArgs& args) {
  QUIRE_CHECK_MSG(args.num_pairs == 0 || (args.pool != nullptr && args.pairs != nullptr && args.block_bytes > 0),
                  "copy_blocks: {} pairs, {} bytes a block", args.num_pairs, args.block_bytes);
  for (int i = 0; i < args.num_pairs; ++i) {
    const BlockPair& pair = args.pairs[i];
    QUIRE_CHECK_MSG(pair.from >= 0 && pair.to >= 0, "copy_blocks: pair {} is from {} to {}", i, pair.from, pair.to);
  }
}

}  // namespace quire
