#include "model/model_files.h"

#include <array>
#include <filesystem>
#include <unordered_set>

#include "core/check.h"
#include "model/gguf.h"
#include "model/mapped_file.h"
#include "model/safetensors.h"

namespace quire {
namespace {

constexpr std::size_t kMaxConfigBytes = 16 << 20;

// The language model's own name of a tensor; empty: not part of it (the vision side of a multimodal checkpoint).
std::string_view language_model_name(std::string_view name, bool multimodal) {
  constexpr std::array<std::string_view, 5> kOther = {"vision_tower.", "model.vision_tower.", "multi_modal_projector.",
                                                      "model.multi_modal_projector.", "vision_model."};
  constexpr std::array<std::string_view, 3> kPrefixes = {"language_model.model.", "model.language_model.", "language_model."};
  if (multimodal) {
    for (const std::string_view prefix : kOther) {
      if (name.starts_with(prefix)) return {};
    }
    for (const std::string_view prefix : kPrefixes) {
      if (name.starts_with(prefix)) return name.substr(prefix.size());
    }
  }
  return name.starts_with("model.") ? name.substr(6) : name;
}

bool exists(const std::filesystem::path& path) {
  std::error_code error;  // a folder that may not be searched holds nothing for us
  return std::filesystem::exists(path, error);
}

[[noreturn]] void fail_without_config(const std::string& path) {
  refuse_gguf_directory(path);
  fail(ErrorCode::kNotFound, "{}: a directory without config.json; a model is a .gguf file, or config.json with safetensors",
       path);
}

ModelFiles open_directory(const std::string& path) {
  const std::filesystem::path directory(path);
  const std::string config_path = (directory / "config.json").string();
  const std::string generation_path = (directory / "generation_config.json").string();
  if (!exists(config_path)) fail_without_config(path);
  const std::string generation = exists(generation_path) ? read_text_file(generation_path, kMaxConfigBytes) : std::string();
  ModelFiles files;
  files.path = path;
  files.naming = Naming::kHuggingFace;
  files.config = model_config_from_json(read_text_file(config_path, kMaxConfigBytes), generation, config_path);
  SafetensorsCheckpoint checkpoint = open_safetensors(path);
  files.storage = std::move(checkpoint.storage);
  std::unordered_set<std::string> seen;
  for (FileTensor& tensor : checkpoint.tensors) {
    const std::string name(language_model_name(tensor.name, files.config.is_gemma()));
    if (name.empty()) continue;
    if (!seen.insert(name).second) fail(ErrorCode::kInvalidFile, "{}: tensor '{}' occurs under two prefixes", path, name);
    tensor.name = name;
    files.tensors.push_back(std::move(tensor));
  }
  return files;
}

}  // namespace

void refuse_gguf_directory(const std::string& path) {
  std::error_code error;
  std::string first;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    const std::string file = entry.path().string();
    if (file.ends_with(".gguf") && (first.empty() || file < first)) first = file;
  }
  if (error) fail(ErrorCode::kIo, "{}: cannot list: {}", path, error.message());
  if (!first.empty()) {
    fail(ErrorCode::kInvalidArgument, "{}: a directory with GGUF files and no config.json; name a file, such as {}", path, first);
  }
}

ModelFiles open_model(const std::string& path) {
  if (path.empty()) fail(ErrorCode::kInvalidArgument, "the path of the model is empty");
  if (!exists(path)) fail(ErrorCode::kNotFound, "{}: no such file or directory", path);
  if (std::filesystem::is_directory(path)) return open_directory(path);
  if (!path.ends_with(".gguf")) {
    fail(ErrorCode::kInvalidArgument, "{}: neither a .gguf file nor a directory with config.json", path);
  }
  const GgufFile file = GgufFile::open(path);
  return {path, Naming::kGguf, model_config_from_gguf(file), file.tensors(), file.storage()};
}

bool is_redundant(std::string_view name, const ModelFiles& files) {
  if (files.naming == Naming::kGguf) return name == "rope_freqs.weight";
  return (name == "lm_head.weight" && files.config.tied_embeddings) || name.ends_with("rotary_emb.inv_freq");
}

}  // namespace quire
