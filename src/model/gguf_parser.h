// parse_gguf: one GGUF file's bytes to values and tensors, every length and offset checked. The container format only; what the
// keys mean is gguf.h's and model_config's business. Internal to gguf.cc.
#pragma once

#include "model/gguf.h"

namespace quire {

struct GgufParts {
  std::unordered_map<std::string_view, GgufValue> values;
  std::vector<FileTensor> tensors;
  std::unordered_map<std::string_view, std::size_t> tensor_index;
};

// Keys and names of the result lie in `bytes`. Throws Error kInvalidFile, or kUnsupported for a version or tensor type that
// exists but is not read.
GgufParts parse_gguf(std::span<const std::byte> bytes, std::string_view file);

std::string_view to_string(GgufType type);

}  // namespace quire
