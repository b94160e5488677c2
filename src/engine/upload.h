// BatchUploader: a HostBatch as a Batch of the device. Where ops read host memory the views point at the host's arrays; elsewhere
// the arrays travel in one upload a step through one device buffer, with the backend's own plan of the step's attention.
#pragma once

#include "backend/backend.h"
#include "engine/batch_builder.h"
#include "model/batch.h"

namespace quire {

class BatchUploader {
 public:
  // `windows`: of each KV group, positions; 0: all.
  BatchUploader(Backend& backend, int num_heads, const KvLayer& kv, std::vector<int> windows)
      : backend_(backend), num_heads_(num_heads), kv_(kv), windows_(std::move(windows)) {}

  // Valid until the next call, and as long as `host` is unchanged. REQUIRES: as many groups as windows.
  Batch upload(const HostBatch& host);
  // One more array of int32 for this step: rows of the forward pass to make logits of. Valid like the batch.
  TensorView upload_rows(std::span<const std::int32_t> rows);

 private:
  void plan_attention(const HostBatch& host);
  Batch to_device(Batch batch);
  std::uint64_t replay_key(const Batch& batch, std::span<const std::size_t> offsets) const;

  Backend& backend_;
  int num_heads_;
  KvLayer kv_;  // any layer: all have one shape
  std::vector<int> windows_;
  std::vector<AttentionLists> lists_;  // by KV group
  std::vector<std::byte> staging_;
  DeviceBuffer device_;
  DeviceBuffer rows_;
};

}  // namespace quire
