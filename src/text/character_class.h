// What the pre-tokenisers' patterns ask of a character, from utf8proc's tables. Every other pattern goes to Oniguruma, which
// may know an older Unicode; a test compares the two over the code points that both know.
#pragma once

#include <cstdint>
#include <string_view>

namespace quire::text {

enum class CharacterClass : std::uint8_t {
  kOther,
  kLetter,   // \p{L}
  kNumber,   // \p{N}
  kNewline,  // \r and \n
  kSpace,    // the rest of \s
};

CharacterClass character_class(char32_t code_point);

// White_Space of the Unicode standard.
bool is_white_space(char32_t code_point);

// A word character as in UTS #18: alphabetic, mark, decimal number, connector punctuation, join control.
bool is_word_character(char32_t code_point);

// Bytes of white space at the start and at the end of valid UTF-8.
std::size_t leading_white_space(std::string_view text);
std::size_t trailing_white_space(std::string_view text);

// The first and the last character of valid UTF-8; 0 if empty.
char32_t first_character(std::string_view text);
char32_t last_character(std::string_view text);

}  // namespace quire::text
