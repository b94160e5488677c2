// KvPool: the KV memory of an engine, block-major. A block holds B token positions of all layers of one KV group:
//   [N, Lg, 2, Hkv, B, D]   (Lg layers of a group; keys, then values)
// so that copying, swapping or moving a block is one contiguous copy. All groups have equally many layers, hence equal bytes
// per block: which group a block serves is the allocator's business and leaves no trace here. Knows nothing of sequences.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "model/model_config.h"

namespace quire {

class KvPool {
 public:
  // Bytes of one block: Lg * 2 * Hkv * B * D elements of `dtype`.
  static std::int64_t bytes_per_block(const ModelConfig& config, DType dtype, int block_size);
  // Blocks that one sequence of `num_tokens` holds at most at any moment while at most `max_step_tokens` are computed a step.
  static std::int64_t blocks_for_sequence(const ModelConfig& config, int block_size, std::int64_t num_tokens,
                                          int max_step_tokens);

  // Throws Error(kOutOfMemory) naming the size. REQUIRES: dtype is F16, BF16 or F32. With the environment variable
  // QUIRE_KV_POISON=1 the pool starts full of NaN, so that a read of a slot never written shows.
  KvPool(Backend& backend, const ModelConfig& config, DType dtype, int block_size, std::int64_t num_blocks);

  const std::vector<KvGroupLayout>& groups() const { return groups_; }
  int group_of_layer(int layer) const { return layer_places_[static_cast<std::size_t>(layer)].group; }
  // Layer `layer` of the model as kernels see it.
  KvLayer layer(int layer) const;

  // Block by block, in order. REQUIRES: ids within the pool.
  void copy_blocks(std::span<const BlockPair> pairs);

  std::int64_t num_blocks() const { return num_blocks_; }
  std::int64_t num_bytes() const { return num_blocks_ * block_bytes_; }

 private:
  struct LayerPlace {
    int group = 0;
    int index = 0;  // within the group
  };

  Backend& backend_;
  std::vector<KvGroupLayout> groups_;
  std::vector<LayerPlace> layer_places_;  // [L]
  DType dtype_;
  int block_size_;
  int num_kv_heads_;
  int head_size_;
  std::int64_t num_blocks_;
  std::int64_t block_bytes_;
  DeviceBuffer memory_;
};

}  // namespace quire
