// Vocabulary: the tokens of a model as data, and the look-up by text. It knows no algorithm: merging is bpe.h, cutting out
// added tokens added_tokens.h. Immutable after construction; views of its strings stay valid when it is moved.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/request.h"
#include "text/text_index.h"

namespace quire::text {

inline constexpr int kMaxVocabulary = 1 << 22;  // more tokens than any model has; a bound on what a file can make us allocate

// Numbered as in GGUF's tokenizer.ggml.token_type.
enum class TokenType : std::uint8_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

// A token that is cut out of the text before anything else happens to it.
struct AddedToken {
  TokenId id = -1;
  std::string content;
  bool special = false;      // a control token: only where special parsing is on
  bool normalized = false;   // matched in normalised text, in its own normalised form
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool single_word = false;  // only between characters that are no word characters
};

// How a token's text becomes the bytes that it stands for.
struct ByteRules {
  bool byte_level = false;  // GPT-2's byte map: U+0120 is a space
  std::string space_mark;   // this text stands for a space (U+2581); empty: none does
};

class Vocabulary {
 public:
  // An empty text is a hole: an id that no text leads to. Throws Error(kInvalidFile) if a text occurs twice.
  // REQUIRES: as many types as tokens.
  Vocabulary(std::vector<std::string> tokens, std::vector<TokenType> types, const ByteRules& rules);
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  int size() const { return static_cast<int>(tokens_.size()); }
  bool contains(TokenId id) const { return id >= 0 && id < size(); }
  TokenId find(std::string_view token) const { return ids_.find(tokens_, token); }  // -1: none

  // REQUIRES: contains(id), for all below.
  const std::string& token(TokenId id) const { return tokens_[static_cast<std::size_t>(id)]; }
  const std::string& bytes(TokenId id) const { return bytes_[static_cast<std::size_t>(id)]; }
  TokenType type(TokenId id) const { return types_[static_cast<std::size_t>(id)]; }
  // Control and unknown tokens: no text of a user leads to them, and they yield none.
  bool is_special(TokenId id) const { return type(id) == TokenType::kControl || type(id) == TokenType::kUnknown; }

 private:
  std::vector<std::string> tokens_;  // as in the file
  std::vector<std::string> bytes_;   // what they stand for
  std::vector<TokenType> types_;
  TextIndex ids_;
};

// GPT-2's map between bytes and printable characters: 21-7E, A1-AC and AE-FF stand for themselves, the other 68 bytes, in
// order, are U+0100 and up.
char32_t byte_to_character(unsigned char byte);
// The bytes of a token written in that map; none if it holds another character.
std::optional<std::string> from_byte_level(std::string_view token);

// The byte of "<0x0A>".
std::optional<unsigned char> parse_byte_token(std::string_view token);

// Ids of the tokens "<0x00>" to "<0xFF>", -1 where there is none.
std::array<TokenId, 256> byte_token_ids(const Vocabulary& vocabulary);

}  // namespace quire::text
