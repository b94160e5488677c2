// Encoding and decoding with small vocabularies: merging, byte fallback, added tokens, and what a file may get wrong.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <ctime>
#include <map>

#include "core/utf8.h"
#include "tests/text/expect_error.h"
#include "tests/text/small_tokenizers.h"

namespace quire {
namespace {

using testing::byte_level_vocabulary;
using ::testing::ElementsAre;
using testing::expect_error;
using testing::sentencepiece_vocabulary;
using testing::token_texts;

constexpr EncodeOptions kPlain{.add_special = false, .parse_special = false};
constexpr EncodeOptions kParsed{.add_special = false, .parse_special = true};

std::vector<std::string> encode(const Tokenizer& t, std::string_view text, EncodeOptions options = kPlain) {
  return token_texts(t, t.encode(text, options));
}

TEST(Bpe, LowestRankFirstThenLeftmost) {
  const Tokenizer t = make_tokenizer(byte_level_vocabulary("gpt-2", {"b c", "a b", "a a", "aa a"}));
  EXPECT_THAT(encode(t, "abc"), ElementsAre("a", "bc"));      // rank, not position
  EXPECT_THAT(encode(t, "aaaaa"), ElementsAre("aa", "aaa"));  // "aa aa a", then "aa a"
  EXPECT_THAT(encode(t, "aaa"), ElementsAre("aaa"));
}

// A token that is in the vocabulary, but that no sequence of merges reaches.
TEST(Bpe, WholePieceWinsOnlyWhereTheModelIgnoresMerges) {
  auto v = byte_level_vocabulary("gpt-2", {"a b"});
  v.tokens.push_back("abc");
  v.types.push_back(1);
  EXPECT_THAT(encode(make_tokenizer(v), "abc"), ElementsAre("ab", "c"));
  v.pre = "llama-bpe";
  EXPECT_THAT(encode(make_tokenizer(v), "abc"), ElementsAre("abc"));
}

TEST(Bpe, WhatWasLearntInOneTextHoldsInTheNext) {
  const Tokenizer t = make_tokenizer(byte_level_vocabulary("gpt-2", {"a b", "b c", "ab c", "c d"}));
  for (int round = 0; round < 3; ++round) {
    EXPECT_THAT(encode(t, "abc"), ElementsAre("abc"));
    EXPECT_THAT(encode(t, "cd"), ElementsAre("cd"));
    EXPECT_THAT(encode(t, "bcd"), ElementsAre("bc", "d"));
  }
}

TEST(Bpe, BytesWithoutATokenVanishBeforeMerging) {
  auto v = byte_level_vocabulary("gpt-2", {"a b"});
  v.tokens[0x01] = "";
  v.types[0x01] = 5;
  const Tokenizer t = make_tokenizer(v);
  EXPECT_THAT(encode(t, "!\x01!"), ElementsAre("!", "!"));
  EXPECT_THAT(encode(make_tokenizer([&] {
                       auto w = v;
                       w.merges = {"! !"};
                       w.tokens[0x01] = "!!";
                       w.types[0x01] = 1;
                       return w;
                     }()),
                     "!\x01!"),
              ElementsAre("!!"));
}

TEST(SentencePiece, HighestScoreFirst) {
  auto v = sentencepiece_vocabulary({"a", "b", "c", "bc", "ab", "\u2581", "\u2581a"});
  v.add_space_prefix = false;
  EXPECT_THAT(encode(make_tokenizer(v), "abc"), ElementsAre("a", "bc"));
  EXPECT_THAT(encode(make_tokenizer(v), " ab"), ElementsAre("\u2581", "ab"));
}

TEST(SentencePiece, ZerosOfBothSignsAreEqual) {
  auto v = sentencepiece_vocabulary({"a", "b", "c", "ab", "bc"});
  v.add_space_prefix = false;
  v.scores[v.scores.size() - 2] = -0.0f;
  v.scores[v.scores.size() - 1] = 0.0f;
  EXPECT_THAT(encode(make_tokenizer(v), "abc"), ElementsAre("ab", "c")) << "the leftmost";
}

// "x" is no token itself; "xy" can be reached all the same.
TEST(SentencePiece, CharactersThatOnlyOccurInsideOfTokens) {
  auto v = sentencepiece_vocabulary({"y", "xy"});
  v.add_space_prefix = false;
  const Tokenizer t = make_tokenizer(v);
  EXPECT_THAT(encode(t, "xy"), ElementsAre("xy"));
  EXPECT_THAT(encode(t, "xx"), ElementsAre("<0x78>", "<0x78>"));
}

TEST(SentencePiece, UnknownCharactersBecomeBytesOrOneUnknown) {
  auto v = sentencepiece_vocabulary({"a"});
  v.add_space_prefix = false;
  EXPECT_THAT(encode(make_tokenizer(v), "a\u00e9"), ElementsAre("a", "<0xC3>", "<0xA9>"));
  for (int b = 0; b < 256; ++b) v.types[3 + b] = 5;
  for (int b = 0; b < 256; ++b) v.tokens[3 + b] = "";
  EXPECT_THAT(encode(make_tokenizer(v), "\u00e9\u00e9a\u00e9"), ElementsAre("<unk>", "a", "<unk>"));
}

// The rule itself, one joining after the other.
std::vector<std::string> joined_by_score(const std::map<std::string, float>& scores, const std::string& text) {
  std::vector<std::string> symbols;
  for (const char c : text) symbols.emplace_back(1, c);
  for (;;) {
    std::size_t best = symbols.size();
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto score = [&](std::size_t at) { return scores.find(symbols[at] + symbols[at + 1]); };
      if (score(i) == scores.end()) continue;
      if (best == symbols.size() || score(i)->second > score(best)->second) best = i;
    }
    if (best == symbols.size()) break;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  std::vector<std::string> tokens;
  for (const std::string& symbol : symbols)
    tokens.push_back(scores.contains(symbol) ? symbol : fmt::format("<0x{:02X}>", symbol[0]));
  return tokens;
}

// Some of the scores are equal, or zeros of both signs. The second encoding finds what the first has learnt.
RC_GTEST_PROP(SentencePiece, JoinsByTheRule, ()) {
  const auto word = [](char last) {
    return rc::gen::resize(4, rc::gen::nonEmpty(rc::gen::container<std::string>(rc::gen::inRange('a', last))));
  };
  const auto pieces = *rc::gen::unique<std::vector<std::string>>(word('d'));
  auto v = sentencepiece_vocabulary(pieces);
  v.add_space_prefix = false;
  std::map<std::string, float> scores;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const float score = *rc::gen::element(-2.5f, -1.0f, -0.0f, 0.0f, 1e-30f, 3.0f, 1e30f);
    scores[pieces[i]] = v.scores[v.scores.size() - pieces.size() + i] = score;
  }
  const Tokenizer t = make_tokenizer(v);
  for (const auto& text :
       *rc::gen::container<std::vector<std::string>>(rc::gen::container<std::string>(rc::gen::inRange('a', 'f')))) {
    for (int round = 0; round < 2; ++round) RC_ASSERT(encode(t, text) == joined_by_score(scores, text));
  }
}

TEST(SentencePiece, PrefixSpaceAtTheStartAndAfterControlTokens) {
  auto v = sentencepiece_vocabulary({"\u2581", "a", "\u2581a"});
  const Tokenizer t = make_tokenizer(v);
  EXPECT_THAT(encode(t, "a"), ElementsAre("\u2581a"));
  EXPECT_THAT(encode(t, ""), ElementsAre());
  EXPECT_THAT(encode(t, "a</s>a", kParsed), ElementsAre("\u2581a", "</s>", "\u2581a"));
  EXPECT_EQ(t.decode(t.encode("a a")), "a a");
  EXPECT_EQ(t.decode(t.encode(" a")), " a");
}

TEST(AddedTokens, UserDefinedAlwaysControlOnRequest) {
  const Tokenizer t = make_tokenizer(byte_level_vocabulary("gpt-2", {}, {"<|x|>"}, {"<t>", "<tt>"}));
  EXPECT_EQ(t.encode("a<|x|>", kParsed).size(), 2u);
  EXPECT_EQ(t.encode("a<|x|>", kPlain).size(), 6u);
  EXPECT_THAT(encode(t, "<t><tt>"), ElementsAre("<t>", "<tt>"));
}

TEST(AddedTokens, LongestWins) {
  auto v = sentencepiece_vocabulary({"\u2581", "a"}, {}, {"  ", "   ", "\n\n"});
  v.add_space_prefix = false;
  const Tokenizer t = make_tokenizer(v);
  EXPECT_THAT(encode(t, "a     a"), ElementsAre("a", "   ", "  ", "a"));
  EXPECT_THAT(encode(t, "\u2581\u2581a"), ElementsAre("  ", "a"));  // the marks themselves, as in SentencePiece
  EXPECT_THAT(encode(t, "\n\n\n"), ElementsAre("\n\n", "<0x0A>"));
}

// The rules around special tokens in which engines have differed. The real vocabularies are in oracle_test.py.
TEST(PeerBugs, B127_TextAroundSpecialTokens) {
  auto v = byte_level_vocabulary("smollm", {"\u0120 a", "u s"}, {"<|im_start|>"}, {"<t>"});
  const Tokenizer byte_level = make_tokenizer(v);
  EXPECT_THAT(encode(byte_level, "<|im_start|>us", kParsed), ElementsAre("<|im_start|>", "us"));
  EXPECT_THAT(encode(byte_level, "a <t> a", kParsed), ElementsAre("a", "\u0120", "<t>", "\u0120a"));  // no space is swallowed
  EXPECT_THAT(encode(byte_level, "  a", kParsed), ElementsAre("\u0120", "\u0120a"));
  EXPECT_THAT(encode(byte_level, "a ", kParsed), ElementsAre("a", "\u0120"));
  EXPECT_EQ(byte_level.encode(std::string_view("\0", 1), kPlain), std::vector<TokenId>{0});
  EXPECT_EQ(byte_level.encode("\U0001f600", kPlain), (std::vector<TokenId>{0xF0, 0x9F, 0x98, 0x80}));
  EXPECT_THAT(encode(byte_level, "12", kPlain), ElementsAre("1", "2"));

  // A word that is a token, but that its merges do not reach: a model that ignores merges takes it whole.
  v = byte_level_vocabulary("llama-bpe", {"\u0120 V"});
  v.tokens.push_back("\u0120Vi\u00e1\u00bb\u0129t");
  v.types.push_back(1);
  EXPECT_EQ(make_tokenizer(v).encode(" Vi\u1ec7t", kPlain).size(), 1u);

  const Tokenizer spm = make_tokenizer(sentencepiece_vocabulary({"\u2581", "a", "\u2581a", "\u2581\u2581"}, {}, {"<t>"}));
  EXPECT_THAT(encode(spm, "<s> a", kParsed), ElementsAre("<s>", "\u2581", "\u2581a"));
  EXPECT_THAT(encode(spm, "<s>a", kParsed), ElementsAre("<s>", "\u2581a"));
  EXPECT_THAT(encode(spm, "<t>a", kParsed), ElementsAre("<t>", "\u2581a"));
}

TEST(Tokenizer, EndTokensAreTheUnionOfWhatTheFileAndTheTextsSay) {
  auto v = byte_level_vocabulary("qwen2", {}, {"<|endoftext|>", "<|im_end|>", "<|other|>", "<stop>"}, {"</s>"});
  const auto id = [&](const char* token) {
    return static_cast<TokenId>(std::find(v.tokens.begin(), v.tokens.end(), token) - v.tokens.begin());
  };
  v.eos = id("<|im_end|>");
  v.eot = id("<stop>");
  const Tokenizer t = make_tokenizer(v);
  EXPECT_THAT(t.end_ids(), ElementsAre(id("<|endoftext|>"), id("<|im_end|>"), id("<stop>")));  // "</s>" is no control token here
}

TEST(Tokenizer, SpecialTokensOfTheFile) {
  auto v = sentencepiece_vocabulary({"\u2581", "a"});
  const auto with = [&](std::optional<bool> bos, std::optional<bool> eos) {
    v.add_bos = bos;
    v.add_eos = eos;
    return encode(make_tokenizer(v), "", {});
  };
  EXPECT_THAT(with({}, {}), ElementsAre("<s>"));
  EXPECT_THAT(with(false, {}), ElementsAre());
  EXPECT_THAT(with(true, true), ElementsAre("<s>", "</s>"));
}

TEST(Tokenizer, TokenBytesAndIds) {
  const Tokenizer t = make_tokenizer(byte_level_vocabulary("gpt-2", {"\u0120 a"}, {"<|x|>"}));
  EXPECT_EQ(t.token_bytes(t.token_id("\u0120a")), " a");
  EXPECT_EQ(t.token_bytes(0xFF), "\xFF");
  EXPECT_EQ(t.token_bytes(t.token_id("<|x|>")), "");
  try {
    (void)t.token_bytes(99'999'999);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("99999999"), std::string::npos) << error.what();
  }
  EXPECT_EQ(t.token_id("nothing"), -1);
  EXPECT_TRUE(t.is_special(t.token_id("<|x|>")));
  EXPECT_EQ(t.decode(std::vector<TokenId>{t.token_id("<|x|>")}, {.skip_special = false}), "<|x|>");
  expect_error(ErrorCode::kInvalidArgument, "token id 99999", [&] { t.decode(std::vector<TokenId>{99999}); });
  expect_error(ErrorCode::kInvalidArgument, "token id -1", [&] { t.decode(std::vector<TokenId>{-1}); });
}

TEST(GgufVocabulary, EveryBrokenFieldIsNamed) {
  const auto good = byte_level_vocabulary("gpt-2", {"a b"});
  const auto broken = [&](auto&& change) {
    return [&, change] {
      GgufVocabulary v = good;
      change(v);
      make_tokenizer(std::move(v));
    };
  };
  const auto invalid = ErrorCode::kInvalidFile;
  expect_error(ErrorCode::kUnsupported, "tokenizer.ggml.model: \"bert\"", broken([](auto& v) { v.model = "bert"; }));
  expect_error(ErrorCode::kUnsupported, "tokenizer.ggml.pre: \"\"", broken([](auto& v) { v.pre = ""; }));
  expect_error(ErrorCode::kUnsupported, "tokenizer.ggml.pre: \"default\"", broken([](auto& v) { v.pre = "default"; }));
  expect_error(invalid, "tokens: missing", broken([](auto& v) { v.tokens.clear(); }));
  expect_error(invalid, "token_type: 3 types", broken([](auto& v) { v.types.resize(3); }));
  expect_error(invalid, "token_type[7]: 9", broken([](auto& v) { v.types[7] = 9; }));
  expect_error(invalid, "tokens[7]", broken([](auto& v) { v.tokens[7] = "\xFF"; }));
  expect_error(invalid, "both \"c\"", broken([](auto& v) { v.tokens[7] = "c"; }));
  expect_error(invalid, "merges: missing", broken([](auto& v) { v.merges.clear(); }));
  expect_error(invalid, "merges[1]: \"ab\"", broken([](auto& v) { v.merges.push_back("ab"); }));
  expect_error(invalid, "merges[1]: \"\"", broken([](auto& v) { v.merges.push_back(""); }));
  expect_error(invalid, "merges[1]: \"zz\" is not a token", broken([](auto& v) { v.merges.push_back("zz a"); }));
  expect_error(invalid, "merges[1]: \"a b\" occurs twice", broken([](auto& v) { v.merges.push_back("a b"); }));
  expect_error(invalid, "bos_token_id: 257", broken([](auto& v) { v.bos = 257; }));
  expect_error(invalid, "eos_token_id: -2", broken([](auto& v) { v.eos = -2; }));
  expect_error(invalid, "bos_token_id: missing", broken([](auto& v) { v.add_bos = true; }));
  auto spm = sentencepiece_vocabulary({"a"});
  spm.scores[3] = std::numeric_limits<float>::quiet_NaN();
  expect_error(invalid, "scores[3]: nan", [&] { make_tokenizer(spm); });
  spm.scores.pop_back();
  expect_error(invalid, "scores: 259 scores for 260", [&] { make_tokenizer(spm); });
}

TEST(Tokenizer, OneMebibyteOfOneCharacterTakesUnderASecond) {
  std::vector<std::string> merges;  // runs of a, b and spaces up to 64
  for (const std::string unit : {"a", "\u0120", "b"}) {
    std::string run = unit;
    for (int i = 0; i < 6; ++i, run += run) merges.push_back(run + " " + run);
  }
  auto spm = sentencepiece_vocabulary({"a", "aa", "aaaa", "\u2581", "\u2581\u2581", "\u2581\u2581\u2581\u2581"}, {}, {"\n\n"});
  for (const Tokenizer& t : {make_tokenizer(byte_level_vocabulary("smollm", merges)),
                             make_tokenizer(byte_level_vocabulary("qwen2", merges)), make_tokenizer(spm)}) {
    for (const std::string unit : {"a", " ", "\n", "0", "!", "\u6f22", "\u0301\u0323", "\xFF", "a "}) {
      std::string text;
      while (text.size() < (1u << 20)) text += unit;
      const std::clock_t begin = std::clock();  // of this process, whatever else the machine does
      t.encode(text, kPlain);
      const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
#if !defined(__SANITIZE_ADDRESS__) && defined(NDEBUG)
      EXPECT_LT(seconds, 1.0) << unit;
#endif
    }
  }
}

Tokenizer without_prefix(GgufVocabulary v) {
  v.add_space_prefix = false;
  return make_tokenizer(std::move(v));
}

// With a space prefix, text between added tokens gains spaces, as in llama.cpp; so there are none here.
RC_GTEST_PROP(Tokenizer, DecodingGivesTheTextBack, (const std::string& bytes)) {
  static const auto merges = std::vector<std::string>{"a b", "\u0120 a", "\u00c3 \u00a9"};
  static const auto pieces = std::vector<std::string>{"\u2581", "a", "\u2581a", "\u00e9"};
  static const Tokenizer tokenizers[] = {make_tokenizer(byte_level_vocabulary("llama3", merges, {"<|x|>"}, {"  "})),
                                         make_tokenizer(sentencepiece_vocabulary(pieces, {"<|x|>"})),
                                         without_prefix(sentencepiece_vocabulary(pieces, {"<|x|>"}, {"  "}))};
  const std::string text = repair_utf8(bytes);
  for (const Tokenizer& t : tokenizers) RC_ASSERT(t.decode(t.encode(bytes, kPlain)) == text);
}

}  // namespace
}  // namespace quire
