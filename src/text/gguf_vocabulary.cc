#include "text/gguf_vocabulary.h"

#include <cmath>

#include "core/check.h"
#include "text/tokenizer_impl.h"

namespace quire {
namespace text {
namespace {

constexpr std::string_view kSpaceMark = "\u2581";

struct Family {
  std::string_view pre;
  KnownPattern pattern;
  bool splits_digits;  // each \p{N} on its own, before the pattern
  bool ignore_merges;
  bool adds_bos;    // unless the file says otherwise
  bool normalizes;  // NFC, which a GGUF file does not record
};

constexpr Family kFamilies[] = {
    {"gpt-2", KnownPattern::kGpt2, false, false, false, false},
    {"smollm", KnownPattern::kGpt2, true, false, false, false},
    {"llama-bpe", KnownPattern::kLlama3, false, true, true, false},
    {"llama3", KnownPattern::kLlama3, false, true, true, false},
    {"llama-v3", KnownPattern::kLlama3, false, true, true, false},
    {"falcon3", KnownPattern::kLlama3, false, true, true, false},
    {"qwen2", KnownPattern::kQwen2, false, false, false, true},
    {"deepseek-r1-qwen", KnownPattern::kQwen2, false, false, false, true},
};

const Family& family_of(const GgufVocabulary& file) {
  std::string known;
  for (const Family& family : kFamilies) {
    if (family.pre == file.pre) return family;
    known += known.empty() ? "" : ", ";
    known += family.pre;
  }
  fail(ErrorCode::kUnsupported, "tokenizer.ggml.pre: \"{}\"; known are {}", file.pre, known);
}

void check_id(TokenId id, std::string_view field, std::size_t num_tokens) {
  if (id < -1 || id >= static_cast<std::int64_t>(num_tokens)) {
    fail(ErrorCode::kInvalidFile, "tokenizer.ggml.{}: {} is not in the vocabulary of {} tokens", field, id, num_tokens);
  }
}

void check(const GgufVocabulary& file) {
  const std::size_t n = file.tokens.size();
  if (n == 0) fail(ErrorCode::kInvalidFile, "tokenizer.ggml.tokens: missing or empty");
  if (n > static_cast<std::size_t>(kMaxVocabulary)) {
    fail(ErrorCode::kInvalidFile, "tokenizer.ggml.tokens: {} tokens; at most {} are read", n, kMaxVocabulary);
  }
  if (!file.types.empty() && file.types.size() != n) {
    fail(ErrorCode::kInvalidFile, "tokenizer.ggml.token_type: {} types for {} tokens", file.types.size(), n);
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (!is_valid_utf8(file.tokens[i])) {
      fail(ErrorCode::kInvalidFile, "tokenizer.ggml.tokens[{}]: \"{}\" is not UTF-8", i, repair_utf8(file.tokens[i]));
    }
    if (!file.types.empty() && (file.types[i] < 1 || file.types[i] > 6)) {
      fail(ErrorCode::kInvalidFile, "tokenizer.ggml.token_type[{}]: {} is not in [1, 6]", i, file.types[i]);
    }
  }
  check_id(file.bos, "bos_token_id", n);
  check_id(file.eos, "eos_token_id", n);
  check_id(file.eot, "eot_token_id", n);
  check_id(file.eom, "eom_token_id", n);
  check_id(file.unk, "unknown_token_id", n);
  check_id(file.pad, "padding_token_id", n);
}

std::vector<TokenType> token_types(const GgufVocabulary& file) {
  std::vector<TokenType> types(file.tokens.size(), TokenType::kNormal);
  for (std::size_t i = 0; i < file.types.size(); ++i) types[i] = static_cast<TokenType>(file.types[i]);
  return types;
}

// In SentencePiece's order of things, user-defined tokens are found after spaces have become marks, so that the token of two
// spaces also covers two marks.
std::vector<AddedToken> added_tokens(const Vocabulary& vocabulary, bool user_defined_normalized) {
  std::vector<AddedToken> added;
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    const bool is_special = vocabulary.is_special(id);
    if (!is_special && vocabulary.type(id) != TokenType::kUserDefined) continue;
    AddedToken token;
    token.id = id;
    token.content = vocabulary.token(id);
    token.special = is_special;
    token.normalized = !is_special && user_defined_normalized;
    added.push_back(std::move(token));
  }
  return added;
}

std::vector<BpeMerge> read_merges(const GgufVocabulary& file, const Vocabulary& vocabulary) {
  std::vector<BpeMerge> merges;
  merges.reserve(file.merges.size());
  FlatTable<Nothing> seen(file.merges.size());
  for (std::size_t i = 0; i < file.merges.size(); ++i) {
    const std::string_view text = file.merges[i];
    const std::size_t space = text.find(' ', 1);
    if (space == std::string_view::npos) {
      fail(ErrorCode::kInvalidFile, "tokenizer.ggml.merges[{}]: \"{}\" is not two tokens with a space between", i,
           repair_utf8(text));
    }
    const std::string_view left = text.substr(0, space);
    const std::string_view right = text.substr(space + 1);
    const auto find = [&](std::string_view token) {
      const TokenId id = vocabulary.find(token);
      if (id < 0) fail(ErrorCode::kInvalidFile, "tokenizer.ggml.merges[{}]: \"{}\" is not a token", i, repair_utf8(token));
      return id;
    };
    const BpeMerge merge{find(left), find(right), find(std::string(left) += right)};
    if (!seen.insert(pair_key(merge.left, merge.right), {}))
      fail(ErrorCode::kInvalidFile, "tokenizer.ggml.merges[{}]: \"{}\" occurs twice", i, repair_utf8(text));
    merges.push_back(merge);
  }
  return merges;
}

TokenizerParts byte_level_parts(GgufVocabulary& file) {
  const Family& family = family_of(file);
  if (file.merges.empty()) fail(ErrorCode::kInvalidFile, "tokenizer.ggml.merges: missing or empty");
  Vocabulary vocabulary(std::move(file.tokens), token_types(file), ByteRules{.byte_level = true, .space_mark = {}});
  std::vector<std::string_view> texts(static_cast<std::size_t>(vocabulary.size()));
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    if (vocabulary.type(id) == TokenType::kNormal && from_byte_level(vocabulary.token(id))) {
      texts[static_cast<std::size_t>(id)] = vocabulary.bytes(id);
    }
  }
  BpeOptions options;
  options.bytes_are_units = true;  // a byte without a token vanishes, as it does for the models' own tokenizers
  options.ignore_merges = family.ignore_merges;
  Bpe bpe(std::move(texts), read_merges(file, vocabulary), options);
  std::vector<AddedToken> added = added_tokens(vocabulary, false);
  TokenizerParts parts{std::move(vocabulary), std::move(bpe), std::move(added), {}, {}, {}};
  if (family.normalizes) parts.normalizer.add_nfc();
  if (family.splits_digits) parts.pretokenizer.add_split(KnownPattern::kNumber, SplitBehavior::kIsolated);
  if (file.add_space_prefix.value_or(false)) parts.pretokenizer.add_prefix_space();
  parts.pretokenizer.add_split(family.pattern, SplitBehavior::kIsolated);
  if (!file.add_bos) file.add_bos = family.adds_bos;
  return parts;
}

TokenizerParts sentencepiece_parts(GgufVocabulary& file) {
  if (file.scores.size() != file.tokens.size()) {
    fail(ErrorCode::kInvalidFile, "tokenizer.ggml.scores: {} scores for {} tokens", file.scores.size(), file.tokens.size());
  }
  for (std::size_t i = 0; i < file.scores.size(); ++i) {
    if (!std::isfinite(file.scores[i])) fail(ErrorCode::kInvalidFile, "tokenizer.ggml.scores[{}]: {}", i, file.scores[i]);
  }
  // What SentencePiece assumes, and a file may leave out.
  if (file.unk < 0) file.unk = 0;
  if (file.bos < 0 && file.tokens.size() > 1) file.bos = 1;
  if (file.eos < 0 && file.tokens.size() > 2) file.eos = 2;

  Vocabulary vocabulary(std::move(file.tokens), token_types(file),
                        ByteRules{.byte_level = false, .space_mark = std::string(kSpaceMark)});
  std::vector<std::string_view> texts(static_cast<std::size_t>(vocabulary.size()));
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    const TokenType type = vocabulary.type(id);
    const bool mergeable = type == TokenType::kNormal || type == TokenType::kUserDefined;
    if (mergeable) texts[static_cast<std::size_t>(id)] = vocabulary.token(id);
  }
  BpeOptions options;
  options.unknown = file.unk;
  options.fuse_unknown = true;
  options.byte_fallback = true;
  options.byte_tokens = byte_token_ids(vocabulary);
  Bpe bpe(std::move(texts), file.scores, options);
  std::vector<AddedToken> added = added_tokens(vocabulary, true);
  TokenizerParts parts{std::move(vocabulary), std::move(bpe), std::move(added), {}, {}, {}};
  parts.normalizer.add_replace(std::string(" "), std::string(kSpaceMark));
  parts.invalid_bytes = InvalidBytes::kOnePerByte;
  if (file.add_space_prefix.value_or(true)) {
    parts.text_prefix = kSpaceMark;
    parts.leading_spaces = LeadingSpaces::kStripOne;
  }
  if (!file.add_bos) file.add_bos = true;
  return parts;
}

}  // namespace
}  // namespace text

Tokenizer make_tokenizer(GgufVocabulary file) {
  text::check(file);
  const bool is_byte_level = file.model == "gpt2";
  if (!is_byte_level && file.model != "llama") {
    fail(ErrorCode::kUnsupported, "tokenizer.ggml.model: \"{}\"; known are gpt2 and llama", file.model);
  }
  text::TokenizerParts parts = is_byte_level ? text::byte_level_parts(file) : text::sentencepiece_parts(file);
  if (*file.add_bos) {
    if (file.bos < 0) fail(ErrorCode::kInvalidFile, "tokenizer.ggml.bos_token_id: missing, but a BOS is to be added");
    parts.prefix_ids = {file.bos};
  }
  if (file.add_eos.value_or(false)) {
    if (file.eos < 0) fail(ErrorCode::kInvalidFile, "tokenizer.ggml.eos_token_id: missing, but an EOS is to be added");
    parts.suffix_ids = {file.eos};
  }
  parts.bos = file.bos;
  parts.eos = file.eos;
  parts.end_ids = text::complete_end_ids(parts.vocabulary, {file.eos, file.eot, file.eom});
  parts.chat_template = std::move(file.chat_template);
  return Tokenizer(std::make_shared<const Tokenizer::Impl>(std::move(parts)));
}

}  // namespace quire
