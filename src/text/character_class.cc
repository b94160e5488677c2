#include "text/character_class.h"

#include <utf8proc.h>

#include <array>

#include "core/utf8.h"

namespace quire::text {
namespace {

CharacterClass classify(char32_t code_point) {
  if (code_point == '\r' || code_point == '\n') return CharacterClass::kNewline;
  if (is_white_space(code_point)) return CharacterClass::kSpace;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return CharacterClass::kLetter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return CharacterClass::kNumber;
    default:
      return CharacterClass::kOther;
  }
}

// Latin, Greek, Cyrillic and more, up to the end of the two-byte characters: looked up instead of computed.
const std::array<CharacterClass, 0x800>& class_table() {
  static const auto table = [] {
    std::array<CharacterClass, 0x800> t{};
    for (char32_t c = 0; c < t.size(); ++c) t[c] = classify(c);
    return t;
  }();
  return table;
}

// Where the last character of `text` begins. REQUIRES: !text.empty()
std::size_t last_character_begin(std::string_view text) {
  std::size_t i = text.size() - 1;
  while (i > 0 && (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80) --i;
  return i;
}

}  // namespace

CharacterClass character_class(char32_t code_point) {
  static const auto& table = class_table();
  return code_point < table.size() ? table[code_point] : classify(code_point);
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_word_character(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      break;
  }
  const bool join_control = c == 0x200C || c == 0x200D;
  const bool circled_letter = (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
                              (c >= 0x1F170 && c <= 0x1F189);  // symbols, yet alphabetic
  return join_control || circled_letter;
}

std::size_t leading_white_space(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    unsigned length = 0;
    if (!is_white_space(decode_valid_utf8(text.data() + i, length))) break;
    i += length;
  }
  return i;
}

std::size_t trailing_white_space(std::string_view text) {
  const std::size_t size = text.size();
  while (!text.empty()) {
    const std::size_t begin = last_character_begin(text);
    if (!is_white_space(first_character(text.substr(begin)))) break;
    text = text.substr(0, begin);
  }
  return size - text.size();
}

char32_t first_character(std::string_view text) {
  unsigned length = 0;
  return text.empty() ? 0 : decode_valid_utf8(text.data(), length);
}

char32_t last_character(std::string_view text) {
  return text.empty() ? 0 : first_character(text.substr(last_character_begin(text)));
}

}  // namespace quire::text
