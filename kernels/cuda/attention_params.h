// Inside the attention ops: what their kernels are launched with, and the launchers per element type that attention.cc chooses
// from. No CUDA header is needed here, so the checks are compiled by the host compiler.
#pragma once

#include <cstdint>

#include "kernels/cuda/kernels.h"

namespace quire::cuda {

inline constexpr int kNoWindow = 1 << 30;

struct AttentionParams {
  const void* q = nullptr;     // [T, Hq, D]
  void* out = nullptr;         // [T, Hq, D]
  const void* keys = nullptr;  // of the layer, see KvLayer
  const void* values = nullptr;
  std::int64_t q_stride = 0, out_stride = 0, block_stride = 0;  // elements
  const std::int32_t* q_indptr = nullptr;                       // [S + 1]
  const std::int32_t* kv_lens = nullptr;                        // [S]
  const std::int32_t* page_indptr = nullptr;                    // [S + 1]
  const std::int32_t* page_indices = nullptr;                   // [P]
  const WorkItem* items = nullptr;                              // of the wave
  const CombineItem* combines = nullptr;                        // of the wave
  float* partial_out = nullptr;                                 // [partial rows, D]
  float* partial_lse = nullptr;                                 // [partial rows], base 2
  int head_size = 0;
  int block_size = 0;
  int num_kv_heads = 0;       // Hkv
  int group = 0;              // Hq / Hkv
  int window = kNoWindow;     // positions seen, at most kNoWindow
  float exponent = 0.0f;      // log2(e) times the scale of what the softmax sees
  float softcap = 0.0f;       // 0: none
  float cap_exponent = 0.0f;  // 2 log2(e) scale / softcap
};

// The size of one wave.
struct AttentionGrid {
  int num_items = 0;
  int num_combines = 0;
  int row_tile = 0;
};

// REQUIRES: a supported head size and row tile; all else has been checked.
void launch_prefill_bf16(const AttentionParams& params, const AttentionGrid& grid, Stream stream);
void launch_prefill_f16(const AttentionParams& params, const AttentionGrid& grid, Stream stream);
void launch_decode_bf16(const AttentionParams& params, const AttentionGrid& grid, Stream stream);
void launch_decode_f16(const AttentionParams& params, const AttentionGrid& grid, Stream stream);
void launch_combine_bf16(const AttentionParams& params, const AttentionGrid& grid, Stream stream);
void launch_combine_f16(const AttentionParams& params, const AttentionGrid& grid, Stream stream);

}  // namespace quire::cuda
