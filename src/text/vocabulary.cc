#include "text/vocabulary.h"

#include "core/check.h"
#include "core/utf8.h"

namespace quire::text {
namespace {

constexpr bool is_printable_byte(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct ByteMap {
  std::array<char32_t, 256> character{};
  std::array<int, 0x144> byte{};  // -1: no byte

  constexpr ByteMap() {
    for (int& b : byte) b = -1;
    char32_t next = 0x100;
    for (unsigned b = 0; b < 256; ++b) {
      character[b] = is_printable_byte(b) ? static_cast<char32_t>(b) : next++;
      byte[character[b]] = static_cast<int>(b);
    }
  }
};
constexpr ByteMap kByteMap;

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  std::size_t begin = 0;
  for (std::size_t at; (at = text.find(from, begin)) != std::string_view::npos; begin = at + from.size()) {
    out.append(text, begin, at - begin);
    out += to;
  }
  out.append(text, begin);
  return out;
}

std::string to_bytes(const std::string& token, TokenType type, const ByteRules& rules) {
  if (type == TokenType::kByte) {
    if (const auto byte = parse_byte_token(token)) return std::string(1, static_cast<char>(*byte));
  }
  if (rules.byte_level && (type == TokenType::kNormal || type == TokenType::kUnused)) {
    if (auto bytes = from_byte_level(token)) return *std::move(bytes);
  }
  if (!rules.space_mark.empty()) return replace_all(token, rules.space_mark, " ");
  return token;
}

}  // namespace

Vocabulary::Vocabulary(std::vector<std::string> tokens, std::vector<TokenType> types, const ByteRules& rules)
    : tokens_(std::move(tokens)), types_(std::move(types)), ids_(tokens_.size()) {
  QUIRE_CHECK(tokens_.size() == types_.size());
  QUIRE_CHECK(tokens_.size() <= static_cast<std::size_t>(kMaxVocabulary));
  bytes_.reserve(tokens_.size());
  for (TokenId id = 0; id < size(); ++id) {
    bytes_.push_back(to_bytes(token(id), type(id), rules));
    if (token(id).empty()) continue;
    const TokenId other = ids_.insert(tokens_, id);
    if (other >= 0 && type(id) != TokenType::kUnused) {
      fail(ErrorCode::kInvalidFile, "vocabulary: the tokens {} and {} are both \"{}\"", other, id, repair_utf8(token(id)));
    }
  }
}

char32_t byte_to_character(unsigned char byte) { return kByteMap.character[byte]; }

std::optional<std::string> from_byte_level(std::string_view token) {
  std::string bytes;
  while (!token.empty()) {
    const Utf8Character c = decode_utf8(token);
    if (c.status != Utf8Status::kValid || c.code_point >= kByteMap.byte.size()) return std::nullopt;
    const int byte = kByteMap.byte[c.code_point];
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
    token.remove_prefix(c.length);
  }
  return bytes;
}

std::optional<unsigned char> parse_byte_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    int digit = 0;
    if (c >= '0' && c <= '9') {
      digit = c - '0';
    } else if (c >= 'A' && c <= 'F') {
      digit = c - 'A' + 10;
    } else {
      return std::nullopt;
    }
    value = value * 16 + digit;
  }
  return static_cast<unsigned char>(value);
}

std::array<TokenId, 256> byte_token_ids(const Vocabulary& vocabulary) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::array<TokenId, 256> ids{};
  for (std::size_t b = 0; b < 256; ++b) {
    ids[b] = vocabulary.find(std::string("<0x") + kHex[b >> 4] + kHex[b & 15] + ">");
  }
  return ids;
}

}  // namespace quire::text
