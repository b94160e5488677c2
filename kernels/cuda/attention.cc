// The attention ops: checks of the arguments, and the waves of the plan on the stream. The kernels are in the .cuh files.
#include <cmath>
#include <numbers>

#include "core/check.h"
#include "kernels/cuda/attention_params.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/dispatch.h"

namespace quire::cuda {
namespace {

constexpr int kAlignment = 16;       // bytes: copies and stores move as many
constexpr int kAlignedElements = 8;  // of two bytes

using Launch = void (*)(const AttentionParams&, const AttentionGrid&, Stream);

struct Kernels {
  const char* op;
  Launch bf16, f16;
  bool (*has_row_tile)(int row_tile, int head_size);
};

bool is_aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % kAlignment == 0; }

void check_rows(const char* op, const char* field, const TensorView& rows, const AttentionArgs& args) {
  const bool fits = rows.rank == 3 && supports_float(rows.dtype) && rows.dtype == args.q.dtype && rows.shape == args.q.shape;
  if (!fits) refuse(op, field, rows, "[T, Hq, D] BF16 or F16, q and out alike");
  if (!is_aligned(rows.data)) refuse(op, field, rows, "16-byte aligned");
  if (rows.outer_stride % kAlignedElements != 0) refuse(op, field, rows.outer_stride, "of a stride that is a multiple of 8");
}

void check_kv(const char* op, const AttentionArgs& args) {
  const KvLayer& kv = args.kv;
  const std::int64_t num_heads = args.q.dim(1), head_size = args.q.dim(2);
  if (!supports_head_size(head_size)) refuse(op, "head_size", head_size, "64, 80, 96, 128 or 256");
  if (kv.dtype != args.q.dtype) {
    fail(ErrorCode::kUnsupported, "{}: kv.dtype is {}, must be that of q, {}", op, to_string(kv.dtype), to_string(args.q.dtype));
  }
  if (kv.head_size != head_size) refuse(op, "kv.head_size", kv.head_size, "that of q");
  if (kv.num_heads < 1 || num_heads % kv.num_heads != 0) refuse(op, "kv.num_heads", kv.num_heads, "a divisor of q's heads");
  if (kv.block_size < 8 || kv.block_size > 256 || kv.block_size % 8 != 0) {
    refuse(op, "kv.block_size", kv.block_size, "a multiple of 8 from 8 to 256");
  }
  if (kv.block_stride % kAlignedElements != 0) refuse(op, "kv.block_stride", kv.block_stride, "a multiple of 8");
  if (!is_aligned(kv.keys) || !is_aligned(kv.values)) {
    fail(ErrorCode::kInvalidArgument, "{}: kv.keys and kv.values must be 16-byte aligned", op);
  }
}

void check_indices(const char* op, const AttentionArgs& args) {
  const auto is_list = [](const TensorView& list) { return list.rank == 1 && list.dtype == DType::kI32 && list.is_dense(); };
  if (!is_list(args.kv_lens)) refuse(op, "kv_lens", args.kv_lens, "[S] I32");
  const std::int64_t num_sequences = args.kv_lens.dim(0);
  if (!is_list(args.q_indptr) || args.q_indptr.dim(0) != num_sequences + 1) refuse(op, "q_indptr", args.q_indptr, "[S + 1] I32");
  if (!is_list(args.page_indptr) || args.page_indptr.dim(0) != num_sequences + 1) {
    refuse(op, "page_indptr", args.page_indptr, "[S + 1] I32");
  }
  if (!is_list(args.page_indices)) refuse(op, "page_indices", args.page_indices, "[P] I32");
}

void check_numbers(const char* op, const AttentionArgs& args) {
  if (!(args.scale > 0.0f && std::isfinite(args.scale))) {
    fail(ErrorCode::kUnsupported, "{}: scale is {}, must be above 0 and finite", op, args.scale);
  }
  if (!(args.softcap >= 0.0f && std::isfinite(args.softcap))) {
    fail(ErrorCode::kInvalidArgument, "{}: softcap is {}, must be 0 or more and finite", op, args.softcap);
  }
  if (args.window < 0) refuse(op, "window", args.window, "0 or more");
}

void check_plan(const Kernels& kernels, const AttentionArgs& args, const AttentionPlan& plan) {
  const char* const op = kernels.op;
  constexpr auto kItemWords = static_cast<std::int64_t>(sizeof(WorkItem) / sizeof(std::int32_t));
  constexpr auto kCombineWords = static_cast<std::int64_t>(sizeof(CombineItem) / sizeof(std::int32_t));
  const auto is_table = [](const TensorView& table, std::int64_t words) {
    return table.rank == 2 && table.dtype == DType::kI32 && table.dim(1) == words && table.is_dense();
  };
  if (!kernels.has_row_tile(plan.row_tile, args.kv.head_size)) {
    refuse(op, "plan.row_tile", plan.row_tile, "one the op has for this head size");
  }
  if (!is_table(plan.items, kItemWords)) refuse(op, "plan.items", plan.items, "[W, 6] I32");
  const std::int64_t num_combines = plan.combines.data == nullptr ? 0 : plan.combines.dim(0);
  if (num_combines > 0 && !is_table(plan.combines, kCombineWords)) refuse(op, "plan.combines", plan.combines, "[C, 5] I32");
  for (const SplitWave& wave : plan.waves) {
    if (wave.first_item + wave.num_items > plan.items.dim(0)) refuse(op, "plan.items", plan.items, "as long as the waves need");
    if (wave.first_combine + wave.num_combines > num_combines) {
      refuse(op, "plan.combines", plan.combines, "as long as the waves need");
    }
  }
  if (plan.num_partial_rows > 0 && (plan.workspace == nullptr || !is_aligned(plan.workspace))) {
    fail(ErrorCode::kInvalidArgument, "{}: plan.workspace must be 16-byte aligned memory of {} bytes", op,
         partial_bytes(plan.num_partial_rows, static_cast<int>(args.q.dim(2))));
  }
}

AttentionParams make_params(const AttentionArgs& args, const AttentionPlan& plan) {
  constexpr float kLog2E = std::numbers::log2e_v<float>;
  AttentionParams params;
  params.q = args.q.data;
  params.out = args.out.data;
  params.keys = args.kv.keys;
  params.values = args.kv.values;
  params.q_stride = args.q.outer_stride;
  params.out_stride = args.out.outer_stride;
  params.block_stride = args.kv.block_stride;
  params.q_indptr = args.q_indptr.as<std::int32_t>();
  params.kv_lens = args.kv_lens.as<std::int32_t>();
  params.page_indptr = args.page_indptr.as<std::int32_t>();
  params.page_indices = args.page_indices.as<std::int32_t>();
  params.head_size = args.kv.head_size;
  params.block_size = args.kv.block_size;
  params.num_kv_heads = args.kv.num_heads;
  params.group = static_cast<int>(args.q.dim(1)) / args.kv.num_heads;
  if (args.window > 0 && args.window < kNoWindow) params.window = args.window;
  params.softcap = args.softcap;
  params.exponent = args.softcap > 0.0f ? kLog2E : kLog2E * args.scale;
  if (args.softcap > 0.0f) params.cap_exponent = 2.0f * kLog2E * args.scale / args.softcap;
  params.partial_out = static_cast<float*>(plan.workspace);
  if (plan.workspace != nullptr) params.partial_lse = params.partial_out + plan.num_partial_rows * args.kv.head_size;
  return params;
}

void attend(const Kernels& kernels, const AttentionArgs& args, const AttentionPlan& plan, Stream stream) {
  check_rows(kernels.op, "q", args.q, args);
  check_rows(kernels.op, "out", args.out, args);
  check_kv(kernels.op, args);
  check_indices(kernels.op, args);
  check_numbers(kernels.op, args);
  check_plan(kernels, args, plan);
  AttentionParams params = make_params(args, plan);
  const bool is_bf16 = args.q.dtype == DType::kBF16;
  for (const SplitWave& wave : plan.waves) {
    const AttentionGrid grid{wave.num_items, wave.num_combines, plan.row_tile};
    params.items = static_cast<const WorkItem*>(plan.items.data) + wave.first_item;
    (is_bf16 ? kernels.bf16 : kernels.f16)(params, grid, stream);
    if (wave.num_combines == 0) continue;
    params.combines = static_cast<const CombineItem*>(plan.combines.data) + wave.first_combine;
    (is_bf16 ? launch_combine_bf16 : launch_combine_f16)(params, grid, stream);
  }
}

}  // namespace

void prefill_attention(const AttentionArgs& args, const AttentionPlan& plan, Stream stream) {
  const auto has_row_tile = [](int row_tile, int head_size) {
    return row_tile == kSmallPrefillTile || (row_tile == kLargePrefillTile && has_large_prefill_tile(head_size));
  };
  attend({"prefill_attention", launch_prefill_bf16, launch_prefill_f16, has_row_tile}, args, plan, stream);
}

void decode_attention(const AttentionArgs& args, const AttentionPlan& plan, Stream stream) {
  const auto has_row_tile = [](int row_tile, int) { return row_tile == kDecodeRows; };
  attend({"decode_attention", launch_decode_bf16, launch_decode_f16, has_row_tile}, args, plan, stream);
}

}  // namespace quire::cuda
