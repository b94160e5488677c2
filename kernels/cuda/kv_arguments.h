// Checks shared by the launchers that write the pool. Host code only.
#pragma once

#include "kernels/cuda/float_dispatch.h"
#include "kernels/ops.h"

namespace quire::cuda {

inline void check_kv_layer(const char* op, const KvLayer& kv) {
  const TensorView head(kv.keys, kv.dtype, {kv.num_heads, kv.head_size});
  require(is_activation(kv.dtype) || kv.dtype == DType::kF32, op, "kv", head, "BF16, F16 or F32");
  require(kv.block_size > 0, op, "kv.block_size", kv.block_size, "positive");
  require(kv.head_size > 0, op, "kv.head_size", kv.head_size, "positive");
  require(kv.block_stride >= std::int64_t{kv.num_heads} * kv.block_size * kv.head_size, op, "kv.block_stride", kv.block_stride,
          "at least Hkv * B * D");
}

// k and v [T, Hkv, D] of one type and slots [T], for the pool of `kv`.
inline void check_new_kv(const char* op, const TensorView& k, const TensorView& v, const TensorView& slots, const KvLayer& kv) {
  check_kv_layer(op, kv);
  require(k.rank == 3 && is_activation(k.dtype), op, "k", k, "[T, Hkv, D] BF16 or F16");
  const std::int64_t tokens = k.dim(0);
  require(is_shaped(k, k.dtype, {tokens, kv.num_heads, kv.head_size}), op, "k", k, "[T, Hkv, D] as kv");
  require(is_shaped(v, k.dtype, {tokens, kv.num_heads, kv.head_size}), op, "v", v, "of k's shape and type");
  require(is_shaped(slots, DType::kI64, {tokens}), op, "slots", slots, "[T] I64");
}

}  // namespace quire::cuda
