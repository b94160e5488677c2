// The hand-written matchers against the regular expression engine.
#include "text/known_patterns.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "core/utf8.h"
#include "tests/text/expect_error.h"
#include "text/character_class.h"

namespace quire::text {
namespace {

constexpr KnownPattern kAll[] = {KnownPattern::kGpt2, KnownPattern::kLlama3, KnownPattern::kQwen2, KnownPattern::kNumber};

std::vector<std::string> pieces(const std::string& text, const std::vector<Span>& spans) {
  std::vector<std::string> out;
  for (const Span& s : spans) out.push_back(text.substr(s.begin, s.end - s.begin));
  return out;
}

const Regex& regex_of(KnownPattern pattern) {
  static const auto compiled = [] {
    std::vector<Regex> all;
    for (const KnownPattern p : kAll) all.emplace_back(pattern_text(p), "test");
    return all;
  }();
  return compiled[static_cast<std::size_t>(pattern) - 1];
}

void expect_same(const std::string& text) {
  for (const KnownPattern pattern : kAll) {
    ASSERT_EQ(pieces(text, find_all(pattern, text)), pieces(text, regex_of(pattern).find_all(text)))
        << "pattern " << static_cast<int>(pattern);
  }
}

TEST(KnownPatterns, AreRecognisedByTheirText) {
  for (const KnownPattern pattern : kAll) EXPECT_EQ(known_pattern(pattern_text(pattern)), pattern);
  EXPECT_EQ(known_pattern("\\p{N}+"), KnownPattern::kNone);
}

TEST(KnownPatterns, EveryCodePointInEveryPlace) {
  const Regex unassigned(R"(\p{Cn})", "test");
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    if (c >= 0x3400 && c < 0xA000 && c % 64 != 0) continue;     // ideographs
    if (c >= 0xAC00 && c < 0xD7A0 && c % 64 != 0) continue;     // Hangul syllables
    if (c >= 0x20000 && c % 256 != 0 && c < 0xE0000) continue;  // ideographs and unassigned planes
    if (c >= 0xF0000 && c % 4096 != 0) continue;                // private use
    std::string s;
    append_utf8(c, s);
    if (!unassigned.find_all(s).empty()) continue;  // the other library may know a newer Unicode
    expect_same("'" + s + " " + s + "1" + s + s + "'" + s + "e \n" + s);
    if (HasFatalFailure()) FAIL() << "U+" << std::hex << static_cast<unsigned>(c);
  }
}

TEST(KnownPatterns, Vectors) {
  for (const char* text : {"",
                           " ",
                           "  ",
                           "\n",
                           " \n ",
                           "a  b",
                           "a \n\n b",
                           "\r\n\r\nx",
                           "I'LL we'Ve 'S 'd'd '\u017f ''s",
                           "12345678901",
                           "   x",
                           "x   ",
                           " \t\n",
                           "!!!\n\n\nx",
                           " !a",
                           "\ta",
                           "a\u00a0b",
                           "'",
                           "'r",
                           "'re",
                           "don't1'll"}) {
    expect_same(text);
  }
}

RC_GTEST_PROP(KnownPatterns, MatchTheEngineOnRandomText, ()) {
  static const std::vector<std::string> kParts = {
      " ",  "  ", "\n",     "\r",     "\t",     "\u00a0", "\u3000", "a",  "Z",      "\u00e9", "\u6f22",
      "1",  "9",  "\u0663", "\u00bd", "!",      ".",      "'",      "'s", "'LL",    "'rE",    "_",
      "\0", "/",  "\u0301", "\u200d", "\u2028", "\x85",   "<",      "|",  "\u017f", "K",      "\u212a"};
  std::string text;
  for (const int i : *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, static_cast<int>(kParts.size())))) {
    text += kParts[static_cast<std::size_t>(i)];
  }
  if (!is_valid_utf8(text)) text = repair_utf8(text);
  for (const KnownPattern pattern : kAll) {
    RC_ASSERT(pieces(text, find_all(pattern, text)) == pieces(text, regex_of(pattern).find_all(text)));
  }
}

TEST(Regex, RefusesWhatTheEngineRefuses) {
  // Of all but the first the engine's message quotes a part of the pattern.
  for (const std::string pattern : {"(", R"(\p{@})", R"(\k<nope>)", R"(\g<nope>)", "(?<1a>x)", R"((?<a>x)(?<a>y)\g<a>)"}) {
    testing::expect_error(ErrorCode::kUnsupported,
                          "x.pattern: pattern \"" + pattern + "\": ", [&] { Regex(pattern, "x.pattern"); });
  }
  testing::expect_error(ErrorCode::kUnsupported, "{@}", [] { Regex(R"(\p{@})", "x.pattern"); });
}

TEST(Regex, EmptyMatchesCountUnlessTheyFollowAMatch) {
  const auto spans = Regex("x*", "test").find_all("axb");
  ASSERT_EQ(spans.size(), 3u);  // before a, x, and at the end; not between x and b
  EXPECT_EQ(spans[1].begin, 1u);
  EXPECT_EQ(spans[1].end, 2u);
  EXPECT_EQ(spans[2].begin, 3u);
}

TEST(Regex, GivingUpIsAnError) {
  const Regex catastrophic("(?:a|aa)+$", "test");
  EXPECT_ANY_THROW(catastrophic.find_all(std::string(80, 'a') + "b"));
}

TEST(CharacterClass, WordCharacters) {
  for (const char32_t c : {U'a', U'0', U'_', U'\u00e9', U'\u0301', U'\u200d', U'\u2160', U'\u24b6'})
    EXPECT_TRUE(is_word_character(c));
  for (const char32_t c : {U' ', U'-', U'\u00bd', U'\u2014'}) EXPECT_FALSE(is_word_character(c));
  EXPECT_EQ(trailing_white_space("a \u3000\n"), 5u);
  EXPECT_EQ(leading_white_space("\u00a0 a"), 3u);
}

}  // namespace
}  // namespace quire::text
