// UTF-8 by the rules of the Unicode standard (chapter 3, table 3-7): decode one character, check, repair.
// Offers no case, category or normalisation data (see text/character_class.h and text/normalizer.h). Everything here is a pure
// function but Utf8Assembler, which keeps at most three bytes of an unfinished character.
#pragma once

#include <string>
#include <string_view>

namespace quire {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8Status {
  kValid,
  kInvalid,     // can never become a character
  kIncomplete,  // the text ends inside what may become one
};

struct Utf8Character {
  char32_t code_point;  // U+FFFD unless valid
  unsigned length;      // bytes; of the maximal subpart if invalid, of the whole rest if incomplete
  Utf8Status status;
};

// REQUIRES: !text.empty()
Utf8Character decode_utf8(std::string_view text);

// REQUIRES: `text` begins with a valid character.
char32_t decode_valid_utf8(const char* text, unsigned& length);

void append_utf8(char32_t code_point, std::string& out);
bool is_valid_utf8(std::string_view text);

// Replaces what is not UTF-8 by U+FFFD, one per maximal subpart.
std::string repair_utf8(std::string_view text);

// How many U+FFFD stand for bytes that are no UTF-8.
enum class InvalidBytes { kOnePerSubpart, kOnePerByte };

// Turns a stream of bytes into valid UTF-8: characters leave when complete, broken ones as U+FFFD as soon as they can no
// longer be completed. The result does not depend on how the bytes were split.
class Utf8Assembler {
 public:
  explicit Utf8Assembler(InvalidBytes policy) : policy_(policy) {}
  void push(std::string_view bytes, std::string& out);
  void finish(std::string& out);

 private:
  void append_broken(unsigned num_bytes, std::string& out) const;

  InvalidBytes policy_;
  std::string tail_;  // an unfinished character
};

}  // namespace quire
