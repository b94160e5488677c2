// BatchUploader: a HostBatch as a Batch of the device. Where ops read host memory the views point at the host's arrays; elsewhere
// the arrays travel in one upload a step through one device buffer.
#pragma once

#include "backend/backend.h"
#include "engine/batch_builder.h"
#include "model/batch.h"

namespace quire {

class BatchUploader {
 public:
  explicit BatchUploader(Backend& backend) : backend_(backend) {}

  // Valid until the next call, and as long as `host` is unchanged.
  Batch upload(const HostBatch& host);
  // One more array of int32 for this step: rows of the forward pass to make logits of. Valid like the batch.
  TensorView upload_rows(std::span<const std::int32_t> rows);

 private:
  Backend& backend_;
  std::vector<std::byte> staging_;
  DeviceBuffer device_;
  DeviceBuffer rows_;
};

}  // namespace quire
