// BatchUploader: a HostBatch as a Batch of the device. Where ops read host memory the views point at the host's arrays; elsewhere
// the arrays travel in one upload a step through one device buffer, with the backend's own plan of the step's attention. The
// buffer is made once, for the largest step.
#pragma once

#include "backend/backend.h"
#include "engine/batch_builder.h"
#include "model/batch.h"

namespace quire {

class BatchUploader {
 public:
  struct Shape {
    int num_heads = 0, num_kv_heads = 0, head_size = 0;
    std::vector<int> windows;  // of each KV group, positions; 0: all
    int block_size = 0;
  };
  // Throws Error(kOutOfMemory) naming the size.
  BatchUploader(Backend& backend, Shape shape, const StepLimits& limits);

  // Valid until the next call, and as long as `host` is unchanged. REQUIRES: as many groups as windows, within the limits.
  Batch upload(const HostBatch& host);

 private:
  AttentionShape attention_shape(std::size_t group) const;
  std::size_t most_bytes(const StepLimits& limits) const;
  void plan_attention(const HostBatch& host);
  Batch to_device(Batch batch);
  ReplayKey replay_key(const Batch& batch, std::span<const std::size_t> offsets) const;

  Backend& backend_;
  Shape shape_;
  std::vector<AttentionLists> lists_;  // by KV group
  std::vector<std::byte> staging_;
  DeviceBuffer device_;
};

}  // namespace quire
