#include "text/known_patterns.h"

#include <algorithm>

#include "core/utf8.h"
#include "text/character_class.h"

namespace quire::text {
namespace {

struct Character {
  CharacterClass type;
  char32_t code_point;
  unsigned length;  // bytes; 0: the text is over
};

// Walks over valid UTF-8.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  bool at_end() const { return at_ == text_.size(); }
  std::size_t position() const { return at_; }
  void move_to(std::size_t position) { at_ = position; }
  void skip(const Character& c) { at_ += c.length; }
  Character peek() const { return peek_at(at_); }
  Character peek_after(const Character& c) const { return peek_at(at_ + c.length); }

  // Moves over characters of one class, `limit` at most; returns how many.
  std::size_t skip_run(CharacterClass type, std::size_t limit = ~std::size_t{0}) {
    std::size_t n = 0;
    for (; n < limit; ++n) {
      const Character c = peek();
      if (c.length == 0 || c.type != type) break;
      skip(c);
    }
    return n;
  }

  // Length of 's, 't, 're, 've, 'm, 'll, 'd at the cursor; 0: none of them.
  std::size_t contraction(bool any_case) const {
    if (at_ + 1 >= text_.size() || text_[at_] != '\'') return 0;
    if (any_case && text_.substr(at_ + 1).starts_with("\u017F")) return 3;  // the long s folds to s
    const auto letter = [&](std::size_t i) {
      const char c = at_ + i < text_.size() ? text_[at_ + i] : '\0';
      return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
    };
    const char first = letter(1);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
    const char second = letter(2);
    if ((first == 'r' || first == 'v') && second == 'e') return 3;
    return first == 'l' && second == 'l' ? 3 : 0;
  }

  // Moves over white space as `\s+(?!\S)|\s+` does: the last character of a run is left to the word behind it, unless it is
  // the only one. With `newlines`, `\s*[\r\n]+` comes first: up to the last line break of the run.
  void skip_white_space(bool newlines) {
    const std::size_t begin = at_;
    std::size_t last = at_;  // where the run's last character begins
    std::size_t behind_newline = begin;
    for (Character c = peek(); c.length > 0 && is_space(c.type); c = peek()) {
      last = at_;
      skip(c);
      if (c.type == CharacterClass::kNewline) behind_newline = at_;
    }
    if (newlines && behind_newline > begin) {
      at_ = behind_newline;
    } else if (!at_end() && last > begin) {
      at_ = last;
    }
  }

  static bool is_space(CharacterClass type) { return type == CharacterClass::kSpace || type == CharacterClass::kNewline; }

 private:
  Character peek_at(std::size_t at) const {
    if (at >= text_.size()) return {CharacterClass::kOther, 0, 0};
    unsigned length = 0;
    const char32_t code_point = decode_valid_utf8(text_.data() + at, length);
    return {character_class(code_point), code_point, length};
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

void skip_gpt2(Cursor& cursor) {
  if (const std::size_t n = cursor.contraction(false); n > 0) return cursor.move_to(cursor.position() + n);
  Character c = cursor.peek();
  if (c.code_point == ' ') {
    const Character next = cursor.peek_after(c);
    if (next.length > 0 && !Cursor::is_space(next.type)) {
      cursor.skip(c);
      c = next;
    }
  }
  if (Cursor::is_space(c.type)) return cursor.skip_white_space(false);
  cursor.skip_run(c.type);
}

// Llama 3 and Qwen 2 differ in how many digits stay together.
void skip_llama3(Cursor& cursor, std::size_t max_digits) {
  if (const std::size_t n = cursor.contraction(true); n > 0) return cursor.move_to(cursor.position() + n);
  const Character c = cursor.peek();
  if (c.type == CharacterClass::kNumber) {
    cursor.skip_run(CharacterClass::kNumber, max_digits);
    return;
  }
  const Character next = cursor.peek_after(c);
  const bool next_is_letter = next.length > 0 && next.type == CharacterClass::kLetter;
  if (c.type == CharacterClass::kLetter || (c.type != CharacterClass::kNewline && next_is_letter)) {
    cursor.skip(c);
    cursor.skip_run(CharacterClass::kLetter);
    return;
  }
  const bool space_before_other = c.code_point == ' ' && next.length > 0 && next.type == CharacterClass::kOther;
  if (c.type == CharacterClass::kOther || space_before_other) {
    cursor.skip(c);
    cursor.skip_run(CharacterClass::kOther);
    cursor.skip_run(CharacterClass::kNewline);
    return;
  }
  cursor.skip_white_space(true);
}

}  // namespace

std::string_view pattern_text(KnownPattern pattern) {
  switch (pattern) {
    case KnownPattern::kNone:
      break;
    case KnownPattern::kGpt2:
      return R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
    case KnownPattern::kLlama3:
      return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
             R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    case KnownPattern::kQwen2:
      return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
             R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    case KnownPattern::kNumber:
      return R"(\p{N})";
  }
  return {};
}

KnownPattern known_pattern(std::string_view text) {
  for (const auto pattern : {KnownPattern::kGpt2, KnownPattern::kLlama3, KnownPattern::kQwen2, KnownPattern::kNumber}) {
    if (text == pattern_text(pattern)) return pattern;
  }
  return KnownPattern::kNone;
}

std::vector<Span> find_all(KnownPattern pattern, std::string_view text) {
  std::vector<Span> matches;
  Cursor cursor(text);
  while (!cursor.at_end()) {
    const std::size_t begin = cursor.position();
    switch (pattern) {
      case KnownPattern::kNone:
        return matches;
      case KnownPattern::kGpt2:
        skip_gpt2(cursor);
        break;
      case KnownPattern::kLlama3:
        skip_llama3(cursor, 3);
        break;
      case KnownPattern::kQwen2:
        skip_llama3(cursor, 1);
        break;
      case KnownPattern::kNumber: {
        const Character c = cursor.peek();
        cursor.skip(c);
        if (c.type != CharacterClass::kNumber) continue;
        break;
      }
    }
    matches.push_back({begin, cursor.position()});
  }
  return matches;
}

}  // namespace quire::text
