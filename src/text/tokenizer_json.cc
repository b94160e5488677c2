// Tokenizer::from_json: Hugging Face's tokenizer.json. Whatever changes token ids and is not known here is refused by name;
// `truncation` and `padding` are a caller's settings and ignored, as Hugging Face's own loader overwrites them. Which special
// tokens are added is the post-processor's word, not tokenizer_config.json's `add_bos_token`: of the latter only the names of
// the special tokens and the chat template are read.
#include <algorithm>

#include "text/json_element.h"
#include "text/tokenizer_impl.h"
#include "text/tokenizer_json_parts.h"

namespace quire {
namespace text {
namespace {

namespace json = boost::json;

constexpr std::size_t kMaxAddedTokenBytes = 4096;

// Ids may have holes, but a small file must not make us allocate millions of them: how many ids the tokens may spread over.
std::int64_t id_limit(const JsonElement& root) {
  const auto added = root.find("added_tokens");
  const std::size_t num_tokens = root.at("model").at("vocab").object().size() + (added ? added->array().size() : 0);
  return static_cast<std::int64_t>(std::min<std::size_t>(kMaxVocabulary, 1024 + 64 * num_tokens));
}

struct TokenList {
  std::int64_t id_limit = 0;
  std::vector<std::string> tokens;
  std::vector<TokenType> types;
  std::vector<bool> in_model;  // part of model.vocab, so merging may yield it
  std::unordered_map<std::string_view, TokenId> model_ids;

  void resize(std::size_t size) {
    tokens.resize(size);
    types.resize(size, TokenType::kUnused);
    in_model.resize(size, false);
  }
};

std::string_view view(const json::string& s) { return {s.data(), s.size()}; }

TokenList read_model_vocabulary(const JsonElement& root) {
  const JsonElement vocabulary = root.at("model").at("vocab");
  TokenList list;
  list.id_limit = id_limit(root);
  list.model_ids.reserve(vocabulary.object().size());
  for (const auto& [key, value] : vocabulary.object()) {
    const std::string_view token(key.data(), key.size());
    if (!value.is_int64() || value.get_int64() < 0 || value.get_int64() >= list.id_limit) {
      JsonElement(value, fmt::format("{}[\"{}\"]", vocabulary.path(), token)).integer(0, list.id_limit - 1);
    }
    const auto id = static_cast<std::size_t>(value.get_int64());
    if (token.empty()) vocabulary.invalid("token {} is empty", id);
    if (id >= list.tokens.size()) list.resize(std::max(id + 1, std::min(2 * id, static_cast<std::size_t>(list.id_limit))));
    if (list.in_model[id]) vocabulary.invalid("\"{}\" and \"{}\" both have the id {}", list.tokens[id], token, id);
    list.tokens[id] = token;
    list.types[id] = TokenType::kNormal;
    list.in_model[id] = true;
    list.model_ids.emplace(token, static_cast<TokenId>(id));
  }
  const auto last = std::find(list.in_model.rbegin(), list.in_model.rend(), true);
  list.resize(static_cast<std::size_t>(list.in_model.rend() - last));
  return list;
}

AddedToken read_added_token(const JsonElement& element, std::int64_t id_limit) {
  AddedToken token;
  token.id = static_cast<TokenId>(element.at("id").integer(0, id_limit - 1));
  token.content = element.string_at("content");
  token.special = element.boolean_at("special", false);
  token.normalized = element.boolean_at("normalized", !token.special);
  token.lstrip = element.boolean_at("lstrip", false);
  token.rstrip = element.boolean_at("rstrip", false);
  token.single_word = element.boolean_at("single_word", false);
  if (token.content.empty()) element.invalid("\"content\" is empty");
  if (token.content.size() > kMaxAddedTokenBytes) {
    element.unsupported("\"content\" has {} bytes; at most {} are taken", token.content.size(), kMaxAddedTokenBytes);
  }
  return token;
}

std::vector<AddedToken> read_added_tokens(const JsonElement& root, TokenList& list) {
  std::vector<AddedToken> added;
  const auto elements = root.find("added_tokens");
  if (!elements) return added;
  for (std::size_t i = 0; i < elements->array().size(); ++i) {
    const JsonElement element = elements->at(i);
    added.push_back(read_added_token(element, list.id_limit));
    const AddedToken& token = added.back();
    const auto id = static_cast<std::size_t>(token.id);
    if (id >= list.tokens.size()) list.resize(id + 1);
    if (!list.tokens[id].empty() && list.tokens[id] != token.content) {
      element.invalid("id {} is \"{}\", but the vocabulary has \"{}\" there", id, token.content, list.tokens[id]);
    }
    list.tokens[id] = token.content;
    list.types[id] = token.special ? TokenType::kControl : TokenType::kUserDefined;
  }
  return added;
}

std::pair<std::string_view, std::string_view> read_merge(const JsonElement& merges, std::size_t index) {
  const json::value& value = merges.array()[index];
  if (value.is_array() && value.get_array().size() == 2 && value.get_array()[0].is_string() && value.get_array()[1].is_string()) {
    return {view(value.get_array()[0].get_string()), view(value.get_array()[1].get_string())};
  }
  const std::string_view text = merges.at(index).string();
  const std::size_t space = text.find(' ', 1);
  if (space == std::string_view::npos) merges.at(index).invalid("\"{}\" is not two tokens with a space between", text);
  return {text.substr(0, space), text.substr(space + 1)};
}

std::vector<BpeMerge> read_merges(const JsonElement& model, const TokenList& list) {
  const JsonElement merges = model.at("merges");
  std::vector<BpeMerge> result;
  result.reserve(merges.array().size());
  FlatTable<Nothing> seen(merges.array().size());
  std::string joined;
  for (std::size_t i = 0; i < merges.array().size(); ++i) {
    const auto [left, right] = read_merge(merges, i);
    const auto find = [&](std::string_view token) {
      const auto it = list.model_ids.find(token);
      if (it == list.model_ids.end()) merges.at(i).invalid("\"{}\" is not in model.vocab", token);
      return it->second;
    };
    joined = left;
    joined += right;
    const BpeMerge merge{find(left), find(right), find(joined)};
    if (!seen.insert(pair_key(merge.left, merge.right), {}))
      merges.at(i).invalid("\"{}\" and \"{}\" were merged before", left, right);
    result.push_back(merge);
  }
  return result;
}

void refuse_unless_empty(const JsonElement& model, std::string_view key) {
  if (const auto element = model.find(key); element && !element->string().empty()) {
    element->unsupported("\"{}\"; only an empty one is supported", element->string());
  }
}

BpeOptions read_model_options(const JsonElement& model, const TokenList& list, bool byte_level) {
  const auto type = model.find("type");  // absent in old files
  if (type && type->string() != "BPE") type->unsupported("\"{}\"; only BPE is supported", type->string());
  refuse_unless_empty(model, "continuing_subword_prefix");
  refuse_unless_empty(model, "end_of_word_suffix");
  const auto dropout = model.object().if_contains("dropout");
  if (dropout != nullptr && !dropout->is_null() && !(dropout->is_number() && dropout->to_number<double>() == 0.0)) {
    model.at("dropout").unsupported("tokenisation would be random");
  }
  BpeOptions options;
  options.bytes_are_units = byte_level;
  options.ignore_merges = model.boolean_at("ignore_merges", false);
  options.byte_fallback = model.boolean_at("byte_fallback", false);
  options.fuse_unknown = model.boolean_at("fuse_unk", false);
  if (byte_level && options.byte_fallback) model.at("byte_fallback").unsupported("true together with a ByteLevel pre-tokenizer");
  if (const auto unknown = model.find("unk_token")) {
    const auto it = list.model_ids.find(unknown->string());
    if (it == list.model_ids.end()) unknown->invalid("\"{}\" is not in model.vocab", unknown->string());
    options.unknown = it->second;
  }
  return options;
}

// The text from which merging starts, for every token that it may yield.
std::vector<std::string_view> mergeable_texts(const Vocabulary& vocabulary, const TokenList& list, bool byte_level) {
  std::vector<std::string_view> texts(static_cast<std::size_t>(vocabulary.size()));
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    if (!list.in_model[static_cast<std::size_t>(id)]) continue;
    std::string_view text = vocabulary.token(id);
    if (byte_level) {
      const auto bytes = from_byte_level(text);
      // Of an added token, bytes() is its text as it stands.
      text = bytes && *bytes == vocabulary.bytes(id) ? std::string_view(vocabulary.bytes(id)) : std::string_view();
    }
    texts[static_cast<std::size_t>(id)] = text;
  }
  return texts;
}

std::string read_chat_template(const JsonElement& config) {
  const auto element = config.find("chat_template");
  if (!element) return {};
  if (element->is_string()) return std::string(element->string());
  for (std::size_t i = 0; i < element->array().size(); ++i) {
    const JsonElement entry = element->at(i);
    if (entry.string_at("name") == "default") return std::string(entry.string_at("template"));
  }
  return {};
}

TokenId read_special(const JsonElement& config, std::string_view key, const Vocabulary& vocabulary) {
  const auto element = config.find(key);
  if (!element) return -1;
  const std::string_view content = element->is_string() ? element->string() : element->string_at("content");
  const TokenId id = vocabulary.find(content);
  if (id < 0) element->invalid("\"{}\" is not in the vocabulary", content);
  return id;
}

void read_config(std::string_view text, TokenizerParts& parts) {
  const json::value value = parse_json(text, "tokenizer_config.json");
  const JsonElement config(value, "tokenizer_config.json");
  parts.chat_template = read_chat_template(config);
  parts.bos = read_special(config, "bos_token", parts.vocabulary);
  parts.eos = read_special(config, "eos_token", parts.vocabulary);
}

TokenizerParts read_tokenizer(const JsonElement& root) {
  const JsonElement model = root.at("model");
  const PreTokenizerParts pre = read_pretokenizer(root);
  const DecoderParts decoder = read_decoder(root);
  if (pre.byte_level != decoder.rules.byte_level) {
    root.unsupported("ByteLevel in only one of pre_tokenizer and decoder");
  }
  TokenList list = read_model_vocabulary(root);
  BpeOptions options = read_model_options(model, list, pre.byte_level);
  const std::vector<BpeMerge> merges = read_merges(model, list);
  std::vector<AddedToken> added = read_added_tokens(root, list);
  if (decoder.has_byte_fallback) {
    for (std::size_t id = 0; id < list.tokens.size(); ++id) {
      if (list.in_model[id] && list.types[id] == TokenType::kNormal && parse_byte_token(list.tokens[id])) {
        list.types[id] = TokenType::kByte;
      }
    }
  }
  Vocabulary vocabulary(std::move(list.tokens), std::move(list.types), decoder.rules);
  options.byte_tokens = byte_token_ids(vocabulary);
  Bpe bpe(mergeable_texts(vocabulary, list, pre.byte_level), merges, options);

  TokenizerParts parts{std::move(vocabulary), std::move(bpe), std::move(added), read_normalizer(root), pre.pretokenizer, {}};
  parts.invalid_bytes = decoder.has_byte_fallback ? InvalidBytes::kOnePerByte : InvalidBytes::kOnePerSubpart;
  parts.leading_spaces = decoder.leading_spaces;
  read_post_processor(root, parts);
  return parts;
}

}  // namespace
}  // namespace text

Tokenizer Tokenizer::from_json(std::string_view tokenizer_json, std::string_view tokenizer_config_json) {
  const boost::json::value value = text::parse_json(tokenizer_json, "tokenizer.json");
  text::TokenizerParts parts = text::read_tokenizer(text::JsonElement(value, "tokenizer.json"));
  if (!tokenizer_config_json.empty()) text::read_config(tokenizer_config_json, parts);
  if (parts.bos < 0 && !parts.prefix_ids.empty()) parts.bos = parts.prefix_ids.front();
  parts.end_ids = text::complete_end_ids(parts.vocabulary, {parts.eos});
  return Tokenizer(std::make_shared<const Impl>(std::move(parts)));
}

}  // namespace quire
