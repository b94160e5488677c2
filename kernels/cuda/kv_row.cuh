// Where a token's keys and values lie in the block-major pool (KvLayer of kernels/ops.h), and how a kernel writes them.
#pragma once

#include <cstdint>

#include "kernels/cuda/vector_io.cuh"
#include "kernels/ops.h"

namespace quire::cuda {

// KvLayer as an argument of a kernel.
struct KvPool {
  KvLayer layer;
  bool is_aligned;  // every row of every head, to 16 bytes
};

inline KvPool kv_pool_of(const KvLayer& layer) {
  const std::int64_t bytes = block_bytes(layer.dtype);
  const auto is_multiple = [&](std::int64_t value) { return value % 16 == 0; };
  const auto address = [](const void* p) { return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(p)); };
  return {layer, is_multiple(address(layer.keys)) && is_multiple(address(layer.values)) &&
                     is_multiple(layer.block_stride * bytes) && is_multiple(layer.head_size * bytes)};
}

// Element 0 of head `head` in slot `slot`, counted from the beginning of the layer's keys or values.
QUIRE_DEVICE std::int64_t kv_element(const KvLayer& kv, std::int64_t slot, int head) {
  const std::int64_t block = slot / kv.block_size, offset = slot % kv.block_size;
  return block * kv.block_stride + (static_cast<std::int64_t>(head) * kv.block_size + offset) * kv.head_size;
}

// A head's row in the pool, or a part of it: Row<T> with T known at run time.
struct KvRow {
  char* data;
  DType dtype;
  int size;
  bool is_aligned;

  // Rounds to the pool's type.
  QUIRE_DEVICE void store(int chunk, const float (&x)[kChunk]) const {
    if (dtype == DType::kBF16) {
      Row<BFloat16>{reinterpret_cast<BFloat16*>(data), size, is_aligned}.store(chunk, x);
    } else if (dtype == DType::kF16) {
      Row<Half>{reinterpret_cast<Half*>(data), size, is_aligned}.store(chunk, x);
    } else {
      Row<float>{reinterpret_cast<float*>(data), size, is_aligned}.store(chunk, x);
    }
  }
  QUIRE_DEVICE KvRow part(int begin, int count) const {
    const int bytes = begin * (dtype == DType::kF32 ? 4 : 2);
    return {data + bytes, dtype, count, is_aligned && bytes % 16 == 0};
  }
};

// `base`: the layer's keys or values.
QUIRE_DEVICE KvRow kv_row(const KvPool& pool, void* base, std::int64_t slot, int head) {
  const std::int64_t bytes = kv_element(pool.layer, slot, head) * (pool.layer.dtype == DType::kF32 ? 4 : 2);
  return {static_cast<char*>(base) + bytes, pool.layer.dtype, pool.layer.head_size, pool.is_aligned};
}

}  // namespace quire::cuda
