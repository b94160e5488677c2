// The CUDA kernels behind the ops of kernels/ops.h: one launcher each. A launcher checks shapes, types and ranges (naming what is
// wrong), picks the configuration, puts the kernel on the stream and returns before it has run. TensorViews point to device
// memory. Activations are BF16 or F16, the same in every argument of a call; norms' weights F32; logits F32. The tests
// run these very sources on the CPU, see tests/support/simt/.
#pragma once

#include <span>

#include "kernels/cuda/split_plan.h"
#include "kernels/cuda/stream.h"
#include "kernels/ops.h"

namespace quire::cuda {

// What a block of any GPU from sm_80 on may have of shared memory (sm_86, sm_89 and sm_120; others have more): all that the
// kernels use, so that there is one configuration of each for all GPUs.
inline constexpr int kMostSharedBytes = 99 * 1024;

// Why the current device cannot run the kernels of this build, in CUDA's words; nullptr: it can. Throws for other errors.
const char* missing_code();

// Block `to` of one pool becomes a copy of block `from` of another, one pair after the other: one contiguous copy each. A pool
// lies on the device or in pinned host memory, which stays as it is until the stream is past the copies.
struct TransferBlocksArgs {
  const void* from_pool = nullptr;
  void* to_pool = nullptr;
  std::int64_t block_bytes = 0;
  const BlockPair* pairs = nullptr;  // [num_pairs] on the host, read before the call returns
  int num_pairs = 0;
};
void transfer_blocks(const TransferBlocksArgs& args, Stream stream);

void embed(const EmbedArgs& args, Stream stream);
void rms_norm(const RmsNormArgs& args, Stream stream);
void add_rms_norm(const AddRmsNormArgs& args, Stream stream);
void add(const AddArgs& args, Stream stream);
void rope_table(const RopeTableArgs& args, Stream stream);
void rope(const RopeArgs& args, Stream stream);
void append_kv(const AppendKvArgs& args, Stream stream);
void rope_append_kv(const RopeAppendKvArgs& args, Stream stream);
void copy_blocks(const CopyBlocksArgs& args, Stream stream);
void gated_activation(const GatedActivationArgs& args, Stream stream);
void gather_rows(const GatherRowsArgs& args, Stream stream);
void softcap(const SoftcapArgs& args, Stream stream);

// A SplitPlan on its way to a launch: the lists on the device, the waves on the host, and memory for partial results. One plan
// serves all layers with the same kv_lens, q_indptr and window. The lists may be longer than the plan that filled them (graphs
// of fixed size): items with a negative sequence do nothing.
struct AttentionPlan {
  TensorView items;     // [W, 6] I32: WorkItem
  TensorView combines;  // [C, 5] I32: CombineItem; data == nullptr: none
  std::span<const SplitWave> waves;
  int row_tile = 0;
  std::int64_t num_partial_rows = 0;
  void* workspace = nullptr;  // partial_bytes(num_partial_rows, D), 16-byte aligned
};

// D is 64, 80, 96, 128 or 256; block sizes are multiples of 8 up to 256; q, out and the pool have one type, BF16 or F16.
void prefill_attention(const AttentionArgs& args, const AttentionPlan& plan, Stream stream);  // plan_prefill
void decode_attention(const AttentionArgs& args, const AttentionPlan& plan, Stream stream);   // plan_decode

// to [M, K] BF16 or F16 = from [M, K], a quantised type of GGUF. At load; `to` may not overlap `from`.
void dequantize(const TensorView& from, const TensorView& to, Stream stream);

// Products of few rows with weights of 4 or 8 bits, which stay packed in the memory of the device: see packed_weight.cuh.
// Whether a matrix can be packed: Q4_0, Q4_1, Q4_K or Q8_0, M a multiple of 16, K of 64. dequantize() takes the others.
bool is_packable(const TensorView& weight);
// to [M, K] = from [M, K], both on the device and not overlapping; `to` 16-byte aligned. At load.
void pack_weight(const TensorView& from, const TensorView& to, Stream stream);
// to [M, K] BF16 or F16 = the packed matrix, with dequantize()'s bits: for products of many rows.
void unpack_weight(const TensorView& from, const TensorView& to, Stream stream);
// matmul with packed weights; `out` is F32 or of x's type. The weights are read once for every eight rows.
void matmul_quantized(const MatmulArgs& args, Stream stream);

// Sampling on the device: sample_rows.h packs the rows, results are copied back by the caller.
struct DeviceSampleArgs {
  TensorView logits;                // [R, V] F32, V up to 2^20; left as they were
  const void* rows = nullptr;       // device copy of what pack_sample_rows() made, 8-byte aligned
  float* scratch = nullptr;         // sample_scratch_bytes(R, V)
  SampleResult* results = nullptr;  // [R]
};
std::size_t sample_scratch_bytes(std::int64_t rows, std::int64_t vocabulary);
void sample(const DeviceSampleArgs& args, Stream stream);

}  // namespace quire::cuda
