// The CUDA kernels behind the ops of kernels/ops.h: one launcher each. A launcher checks shapes, types and ranges (naming what is
// wrong), picks the configuration, puts the kernel on the stream and returns before it has run. TensorViews point to device
// memory. Activations are BF16 or F16, the same in every argument of a call; norms' weights and biases F32; logits F32. The tests
// run these very sources on the CPU, see tests/support/simt/.
#pragma once

#include <span>

#include "kernels/cuda/split_plan.h"
#include "kernels/cuda/stream.h"
#include "kernels/ops.h"

namespace quire::cuda {

void embed(const EmbedArgs& args, Stream stream);
void rms_norm(const RmsNormArgs& args, Stream stream);
void add_rms_norm(const AddRmsNormArgs& args, Stream stream);
void add(const AddArgs& args, Stream stream);
void rope_table(const RopeTableArgs& args, Stream stream);
void rope(const RopeArgs& args, Stream stream);
void append_kv(const AppendKvArgs& args, Stream stream);
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

}  // namespace quire::cuda
