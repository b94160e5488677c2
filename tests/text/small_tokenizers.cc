#include "tests/text/small_tokenizers.h"

#include <fmt/format.h>

#include "text/tokenizer_impl.h"

namespace quire::testing {
namespace {

void add(GgufVocabulary& v, const std::vector<std::string>& tokens, text::TokenType type) {
  for (const std::string& token : tokens) {
    v.tokens.push_back(token);
    v.types.push_back(static_cast<std::int32_t>(type));
  }
}

}  // namespace

GgufVocabulary byte_level_vocabulary(const std::string& pre, const std::vector<std::string>& merges,
                                     const std::vector<std::string>& control, const std::vector<std::string>& user_defined) {
  GgufVocabulary v;
  v.model = "gpt2";
  v.pre = pre;
  v.add_bos = false;
  for (int b = 0; b < 256; ++b) {
    std::string token;
    append_utf8(text::byte_to_character(static_cast<unsigned char>(b)), token);
    add(v, {token}, text::TokenType::kNormal);
  }
  for (const std::string& merge : merges) {
    std::string token = merge;
    token.erase(token.find(' ', 1), 1);
    add(v, {token}, text::TokenType::kNormal);
  }
  v.merges = merges;
  if (v.merges.empty()) v.merges = {"! \"", "\" !"}, add(v, {"!\"", "\"!"}, text::TokenType::kNormal);
  add(v, control, text::TokenType::kControl);
  add(v, user_defined, text::TokenType::kUserDefined);
  return v;
}

GgufVocabulary sentencepiece_vocabulary(const std::vector<std::string>& pieces, const std::vector<std::string>& control,
                                        const std::vector<std::string>& user_defined) {
  GgufVocabulary v;
  v.model = "llama";
  add(v, {"<unk>"}, text::TokenType::kUnknown);
  add(v, {"<s>", "</s>"}, text::TokenType::kControl);
  for (int b = 0; b < 256; ++b) add(v, {fmt::format("<0x{:02X}>", b)}, text::TokenType::kByte);
  add(v, pieces, text::TokenType::kNormal);
  add(v, control, text::TokenType::kControl);
  add(v, user_defined, text::TokenType::kUserDefined);
  for (std::size_t i = 0; i < v.tokens.size(); ++i) v.scores.push_back(-static_cast<float>(i));
  return v;
}

std::vector<std::string> token_texts(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  std::vector<std::string> texts;
  for (const TokenId id : ids) texts.push_back(tokenizer.impl().vocabulary().token(id));
  return texts;
}

}  // namespace quire::testing
