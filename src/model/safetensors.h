// safetensors: tensors of a checkpoint, left in the mapped files: one file, or the shards that model.safetensors.index.json
// names. Fails closed: the header's every invariant is checked (no duplicate names, no holes, no overlap, sizes that agree), and
// types other than F32, F16 and BF16 are refused by name. Knows nothing of architectures; config.json is model_config's.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/file_tensor.h"

namespace quire {

// The tensors of one file's bytes, in order of their data, which stay in `bytes`. `file` stands in messages.
std::vector<FileTensor> parse_safetensors(std::span<const std::byte> bytes, std::string_view file);

struct SafetensorsCheckpoint {
  std::vector<FileTensor> tensors;
  std::shared_ptr<const void> storage;  // keeps the mapped files alive
};

// Opens model.safetensors.index.json with its shards, or else model.safetensors, in `directory`.
SafetensorsCheckpoint open_safetensors(const std::string& directory);

}  // namespace quire
