// load_tokenizer: the bridge from model files (which the text room does not know) to a Tokenizer.
#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/check.h"
#include "model/gguf.h"
#include "model/model_files.h"
#include "quire/tokenizer.h"
#include "text/gguf_vocabulary.h"

namespace quire {
namespace {

constexpr std::uintmax_t kMaxJsonBytes = std::uintmax_t{256} << 20;

TokenId find_id(const GgufFile& file, std::string_view key) {
  const std::optional<std::int64_t> id = file.find_integer(key);
  if (!id) return -1;
  if (*id < 0 || *id > std::numeric_limits<TokenId>::max()) {
    fail(ErrorCode::kInvalidFile, "{}: {} is {}, no token id", file.path(), key, *id);
  }
  return static_cast<TokenId>(*id);
}

std::vector<std::string> find_texts(const GgufFile& file, std::string_view key) {
  const auto views = file.find_strings(key);
  return views ? std::vector<std::string>(views->begin(), views->end()) : std::vector<std::string>();
}

std::vector<std::int32_t> find_types(const GgufFile& file) {
  std::vector<std::int32_t> types;
  const auto values = file.find_integers("tokenizer.ggml.token_type");
  if (!values) return types;
  for (const std::int64_t value : *values) {
    if (value < 0 || value > 255) fail(ErrorCode::kInvalidFile, "{}: tokenizer.ggml.token_type holds {}", file.path(), value);
    types.push_back(static_cast<std::int32_t>(value));
  }
  return types;
}

Tokenizer from_gguf(const GgufFile& file) {
  if (const auto json = file.find_string("tokenizer.huggingface.json")) return Tokenizer::from_json(*json);
  GgufVocabulary vocabulary;
  vocabulary.model = file.string("tokenizer.ggml.model");
  vocabulary.pre = file.find_string("tokenizer.ggml.pre").value_or("");
  vocabulary.tokens = find_texts(file, "tokenizer.ggml.tokens");
  vocabulary.scores = file.find_floats("tokenizer.ggml.scores").value_or(std::vector<float>());
  vocabulary.types = find_types(file);
  vocabulary.merges = find_texts(file, "tokenizer.ggml.merges");
  vocabulary.bos = find_id(file, "tokenizer.ggml.bos_token_id");
  vocabulary.eos = find_id(file, "tokenizer.ggml.eos_token_id");
  vocabulary.eot = find_id(file, "tokenizer.ggml.eot_token_id");
  vocabulary.eom = find_id(file, "tokenizer.ggml.eom_token_id");
  vocabulary.unk = find_id(file, "tokenizer.ggml.unknown_token_id");
  vocabulary.pad = find_id(file, "tokenizer.ggml.padding_token_id");
  vocabulary.add_bos = file.find_bool("tokenizer.ggml.add_bos_token");
  vocabulary.add_eos = file.find_bool("tokenizer.ggml.add_eos_token");
  vocabulary.add_space_prefix = file.find_bool("tokenizer.ggml.add_space_prefix");
  vocabulary.chat_template = file.find_string("tokenizer.chat_template").value_or("");
  return make_tokenizer(std::move(vocabulary));
}

// Empty if the file is not there and `required` is false.
std::string read_text(const std::filesystem::path& path, bool required) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) {
    if (!required) return {};
    fail(ErrorCode::kNotFound, "{}: {}", path.string(), error.message());
  }
  if (size > kMaxJsonBytes) fail(ErrorCode::kInvalidFile, "{}: {} bytes, more than {}", path.string(), size, kMaxJsonBytes);
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) fail(ErrorCode::kIo, "{}: cannot be read", path.string());
  return text;
}

// Puts the name of the file in front of what went wrong in it.
template <typename F>
Tokenizer naming(const std::string& path, F make) {
  try {
    return make();
  } catch (const Error& error) {
    if (std::string_view(error.what()).starts_with(path)) throw;
    throw Error(error.code(), path + ": " + error.what());
  }
}

}  // namespace

Tokenizer load_tokenizer(const std::string& path) {
  if (path.empty()) fail(ErrorCode::kInvalidArgument, "the path of the tokenizer is empty");
  const std::filesystem::path directory(path);
  if (!std::filesystem::is_directory(directory)) {
    return naming(path, [&] { return from_gguf(GgufFile::open(path)); });
  }
  if (!std::filesystem::exists(directory / "tokenizer.json")) refuse_gguf_directory(path);
  return naming(path, [&] {
    std::string config = read_text(directory / "tokenizer_config.json", false);
    return Tokenizer::from_json(read_text(directory / "tokenizer.json", true), config);
  });
}

}  // namespace quire
