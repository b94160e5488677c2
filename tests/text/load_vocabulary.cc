#include "tests/text/load_vocabulary.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/check.h"
#include "text/json_element.h"

namespace quire::testing {
namespace {

TokenId id_at(const text::JsonElement& root, const char* key) {
  const auto element = root.find(key);
  return element ? static_cast<TokenId>(element->integer(-1, 1 << 30)) : -1;
}

std::optional<bool> flag_at(const text::JsonElement& root, const char* key) {
  const auto element = root.find(key);
  return element ? std::optional<bool>(element->boolean()) : std::nullopt;
}

template <typename Read>
void read_array(const text::JsonElement& root, const char* key, Read&& read) {
  const auto element = root.find(key);
  if (!element) return;
  for (const auto& value : element->array()) read(value);
}

}  // namespace

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ErrorCode::kNotFound, "{}: cannot be opened", path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

GgufVocabulary parse_gguf_vocabulary(const std::string& json) {
  const auto value = text::parse_json(json, "vocabulary");
  const text::JsonElement root(value, "vocabulary");
  GgufVocabulary v;
  v.model = root.string_at("model");
  if (const auto pre = root.find("pre")) v.pre = pre->string();
  if (const auto source = root.find("chat_template")) v.chat_template = source->string();
  read_array(root, "tokens", [&](const auto& x) { v.tokens.emplace_back(x.as_string().data(), x.as_string().size()); });
  read_array(root, "merges", [&](const auto& x) { v.merges.emplace_back(x.as_string().data(), x.as_string().size()); });
  read_array(root, "scores", [&](const auto& x) { v.scores.push_back(x.template to_number<float>()); });
  read_array(root, "types", [&](const auto& x) { v.types.push_back(x.template to_number<std::int32_t>()); });
  v.bos = id_at(root, "bos");
  v.eos = id_at(root, "eos");
  v.eot = id_at(root, "eot");
  v.eom = id_at(root, "eom");
  v.unk = id_at(root, "unk");
  v.pad = id_at(root, "pad");
  v.add_bos = flag_at(root, "add_bos");
  v.add_eos = flag_at(root, "add_eos");
  v.add_space_prefix = flag_at(root, "add_space_prefix");
  return v;
}

Tokenizer load_test_tokenizer(const std::string& path) {
  const std::string json = read_file(path);
  if (json.find("\"added_tokens\"") == std::string::npos) return make_tokenizer(parse_gguf_vocabulary(json));
  const std::string config = (std::filesystem::path(path).parent_path() / "tokenizer_config.json").string();
  return Tokenizer::from_json(json, std::filesystem::exists(config) ? read_file(config) : std::string());
}

}  // namespace quire::testing
