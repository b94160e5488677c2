// Hand-written matchers for the few patterns that nearly every model uses: several times as fast as the regular expression
// engine, and without backtracking. A pattern is recognised by its text alone; tests compare the two on random text.
#pragma once

#include <string_view>
#include <vector>

#include "text/regex.h"

namespace quire::text {

enum class KnownPattern { kNone, kGpt2, kLlama3, kQwen2, kNumber };

// The patterns' texts, as the models' own files have them.
std::string_view pattern_text(KnownPattern pattern);
KnownPattern known_pattern(std::string_view text);  // kNone: not one of them

// What Regex(pattern_text(pattern)).find_all(text) returns. REQUIRES: pattern != kNone; valid UTF-8.
std::vector<Span> find_all(KnownPattern pattern, std::string_view text);

}  // namespace quire::text
