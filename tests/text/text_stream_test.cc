#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "core/utf8.h"
#include "quire/error.h"
#include "tests/text/small_tokenizers.h"

namespace quire {
namespace {

using testing::byte_level_vocabulary;
using testing::sentencepiece_vocabulary;

// A vocabulary with the pieces of the stop string among its tokens, and every byte.
const Tokenizer& tokenizer() {
  static const Tokenizer t = make_tokenizer(byte_level_vocabulary("gpt-2", {"A B", "AB C", "D E", "DE F", "H I"}, {"<|x|>"}));
  return t;
}

std::vector<TokenId> tokens(const std::vector<std::string>& texts) {
  std::vector<TokenId> ids;
  for (const std::string& text : texts) ids.push_back(tokenizer().token_id(text));
  return ids;
}

struct Streamed {
  std::vector<std::string> pieces;
  std::string text;
  bool stopped = false;
};

Streamed stream(const Tokenizer& t, const std::vector<TokenId>& ids, const std::vector<std::string>& stop) {
  Streamed result;
  TextStream s(t, stop, {.at_text_start = true});
  for (const TokenId id : ids) {
    result.pieces.push_back(s.push(id));
    EXPECT_TRUE(is_valid_utf8(result.pieces.back()));
  }
  result.pieces.push_back(s.finish());
  for (const std::string& piece : result.pieces) result.text += piece;
  result.stopped = s.stopped();
  return result;
}

// The definition, in the plainest form: the stop string whose end comes first, the longest of those.
std::string cut_before_stop(const std::string& text, const std::vector<std::string>& stops) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::size_t longest = 0;
    for (const std::string& stop : stops) {
      if (text.substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    }
    if (longest > 0) return text.substr(0, end - longest);
  }
  return text;
}

TEST(PeerBugs, B122_StopStringSplitOverTokens) {
  const std::vector<std::string> stop = {"DEFGHIJ"};
  const auto hit = stream(tokenizer(), tokens({"ABC", "DEF", "G", "HI", "J", "K"}), stop);
  EXPECT_EQ(hit.text, "ABC");
  EXPECT_TRUE(hit.stopped);
  EXPECT_EQ(hit.pieces[0], "ABC");  // at once
  EXPECT_EQ(hit.pieces[1], "");
  const auto miss = stream(tokenizer(), tokens({"ABC", "DEF", "G", "X"}), stop);
  EXPECT_EQ(miss.text, "ABCDEFGX");
  EXPECT_EQ(miss.pieces[3], "DEFGX");
  EXPECT_FALSE(miss.stopped);
}

RC_GTEST_PROP(PeerBugs, B122_StreamedTextIsTheWholeTextCut, ()) {
  const auto letters = rc::gen::container<std::string>(rc::gen::elementOf(std::string("ABab ")));
  // Letters of the stop strings, halves of characters, anything.
  const auto bytes = *rc::gen::container<std::string>(
      rc::gen::oneOf(rc::gen::elementOf(std::string("AABBab \xC3\xA9")), rc::gen::arbitrary<char>()));
  std::vector<std::string> stops = *rc::gen::container<std::vector<std::string>>(letters);
  std::erase(stops, "");
  std::vector<TokenId> ids;
  for (const char c : bytes) ids.push_back(static_cast<unsigned char>(c));
  const std::string whole = tokenizer().decode(ids);
  const auto result = stream(tokenizer(), ids, stops);
  RC_ASSERT(result.text == cut_before_stop(whole, stops));
  RC_ASSERT(result.stopped == (result.text.size() < whole.size()));
}

TEST(PeerBugs, B124_HeldTextIsDeliveredAtTheEnd) {
  EXPECT_EQ(stream(tokenizer(), tokens({"?"}), {"\n"}).text, "?");
  EXPECT_EQ(stream(tokenizer(), tokens({"?", "DEF"}), {"DEFG"}).text, "?DEF");
  EXPECT_EQ(stream(tokenizer(), {'?', '\n'}, {"\n"}).text, "?");
}

TEST(PeerBugs, B125_CharactersSplitAcrossTokens) {
  for (const std::string character : {"a", "\u00e9", "\u20ac", "\u6f22", "\U0001f600", "\U0001f468\u200d\U0001f469"}) {
    std::vector<TokenId> ids;
    for (const char c : character) ids.push_back(static_cast<unsigned char>(c));
    const auto result = stream(tokenizer(), ids, {});
    EXPECT_EQ(result.text, character);
    EXPECT_EQ(result.text, tokenizer().decode(ids));
    ids.pop_back();
    const auto cut = stream(tokenizer(), ids, {});
    EXPECT_EQ(cut.text, tokenizer().decode(ids));
    EXPECT_EQ(cut.text.ends_with(kReplacementCharacter), character.size() > 1);
  }
}

// In the middle of a stop string, of a character, after the stop: another stream begins afresh, and neither feels the other.
TEST(TextStream, AnotherStartsAtTheBeginning) {
  TextStream first(tokenizer(), {"ABC", "x"}, {.at_text_start = true, .min_tokens = 1});
  const std::vector<TokenId> x = tokens({"x"}), ab = tokens({"A", "B"}), c = tokens({"C"});
  EXPECT_EQ(first.push(x[0]), "x");  // before min_tokens
  EXPECT_EQ(first.push(ab[0]), "");
  TextStream second = first.another();
  EXPECT_EQ(second.push(x[0]), "x");
  EXPECT_EQ(second.push(c[0]), "C");
  EXPECT_EQ(first.push(ab[1]), "");
  EXPECT_EQ(first.push(c[0]), "");
  EXPECT_TRUE(first.stopped());
  EXPECT_FALSE(second.stopped());
  EXPECT_EQ(second.push(ab[0]), "");
  EXPECT_EQ(second.finish(), "A");
  EXPECT_FALSE(first.another().stopped());
}

TEST(TextStream, LongestOfTheStopsThatEndTogether) {
  const auto result = stream(tokenizer(), {'x', 'a', 'b', 'c'}, {"bc", "abc", "c"});
  EXPECT_EQ(result.text, "x");
}

TEST(TextStream, FirstToBeCompleteStops) { EXPECT_EQ(stream(tokenizer(), {'a', 'b', 'c', 'd'}, {"abcd", "bc"}).text, "a"); }

TEST(TextStream, ControlTokensHaveNoText) {
  EXPECT_EQ(stream(tokenizer(), tokens({"ABC", "<|x|>", "DEF"}), {"<|x|>"}).text, "ABCDEF");
}

TEST(TextStream, StopStringsCountOnlyAfterMinTokens) {
  const auto ids = tokens({"DEF", "G", "HI", "J", "K", "DEF", "G", "HI", "J", "X"});
  for (const auto& [min_tokens, text] : std::vector<std::pair<int, std::string>>{{0, ""}, {3, "DEFGHIJK"}, {4, "DEFGHIJK"}}) {
    TextStream s(tokenizer(), {"DEFGHIJ"}, {.min_tokens = min_tokens});
    std::string out;
    for (const TokenId id : ids) out += s.push(id);
    EXPECT_EQ(out + s.finish(), text) << min_tokens;
    EXPECT_TRUE(s.stopped());
  }
}

TEST(TextStream, LeadingSpaceGoesOnlyAtTheStartOfTheText) {
  const Tokenizer t = make_tokenizer(sentencepiece_vocabulary({"\u2581", "a", "\u2581a"}));
  const TokenId id = t.token_id("\u2581a");
  for (const bool at_start : {false, true}) {
    TextStream s(t, {}, {.at_text_start = at_start});
    EXPECT_EQ(s.push(1), "");
    EXPECT_EQ(s.push(id), at_start ? "a" : " a");
    EXPECT_EQ(s.push(id), " a");
  }
}

TEST(TextStream, NothingLeavesAfterTheStop) {
  TextStream s(tokenizer(), {"a"});
  EXPECT_EQ(s.push('a'), "");
  EXPECT_TRUE(s.stopped());
  EXPECT_EQ(s.push('b'), "");
  EXPECT_EQ(s.finish(), "");
}

TEST(TextStream, RefusesStopsThatCannotMatch) {
  EXPECT_THROW(TextStream(tokenizer(), {""}), Error);
  EXPECT_THROW(TextStream(tokenizer(), {"\xFF"}), Error);
}

}  // namespace
}  // namespace quire
