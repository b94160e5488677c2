// ModelFiles: a model on disk, opened and described but not loaded: its config and every tensor's type, shape and place in the
// mapped files. Weight bytes are not touched, so this is also what a memory report is made from.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/file_tensor.h"
#include "model/model_config.h"
#include "model/tensor_names.h"

namespace quire {

struct ModelFiles {
  std::string path;
  Naming naming = Naming::kGguf;
  ModelConfig config;
  std::vector<FileTensor> tensors;      // of the language model; Hugging Face names without "model." and the like
  std::shared_ptr<const void> storage;  // keeps the mapped files alive
};

// A GGUF file (of a split model: any one of its files) or a directory with config.json and safetensors. Throws Error.
ModelFiles open_model(const std::string& path);

// For a directory in which something was not found. What somebody means who names a directory of GGUF files is one of the files:
// throws an Error that says so; returns if there is none.
void refuse_gguf_directory(const std::string& path);

// Tensors that the model does not use but files may hold: a head that tying makes redundant, divisors that are in the config.
bool is_redundant(std::string_view tensor_name, const ModelFiles& files);

}  // namespace quire
