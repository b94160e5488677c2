#include "text/utf8.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/normalizer.h"

namespace quire::text {
namespace {

const std::string kR(kReplacementCharacter);

TEST(Utf8, RepairsOncePerMaximalSubpart) {
  EXPECT_EQ(repair_utf8("ok \xC3\xA9"), "ok \xC3\xA9");
  EXPECT_EQ(repair_utf8("\xFF\xFE"), kR + kR);
  EXPECT_EQ(repair_utf8("\xE2\x82"), kR);                // cut off
  EXPECT_EQ(repair_utf8("\xE2\x82x"), kR + "x");         // broken off
  EXPECT_EQ(repair_utf8("\xC0\xAF"), kR + kR);           // overlong
  EXPECT_EQ(repair_utf8("\xE0\x80\x80"), kR + kR + kR);  // overlong: the lead alone is the subpart
  EXPECT_EQ(repair_utf8("\xED\xA0\x80"), kR + kR + kR);  // surrogate
  EXPECT_EQ(repair_utf8("\xF4\x90\x80\x80"), kR + kR + kR + kR);
  EXPECT_EQ(repair_utf8("\xF0\x9F\x98\xF0\x9F\x98\x80"), kR + "\xF0\x9F\x98\x80");
}

TEST(Utf8, EveryCodePointSurvives) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string s;
    append_utf8(c, s);
    const Utf8Character decoded = decode_utf8(s);
    ASSERT_EQ(decoded.status, Utf8Status::kValid);
    ASSERT_EQ(decoded.code_point, c);
    ASSERT_EQ(decoded.length, s.size());
    unsigned length = 0;
    ASSERT_EQ(decode_valid_utf8(s.data(), length), c);
    ASSERT_EQ(length, s.size());
  }
}

TEST(Utf8, AssemblerDoesNotDependOnTheSplit) {
  const std::string bytes = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xFF\xE2\x82z\xF0\x9F";
  for (const auto policy : {InvalidBytes::kOnePerSubpart, InvalidBytes::kOnePerByte}) {
    std::string whole;
    Utf8Assembler once(policy);
    once.push(bytes, whole);
    once.finish(whole);
    for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
      std::string out;
      Utf8Assembler assembler(policy);
      assembler.push(bytes.substr(0, cut), out);
      EXPECT_TRUE(is_valid_utf8(out));
      assembler.push(bytes.substr(cut), out);
      assembler.finish(out);
      EXPECT_EQ(out, whole) << "cut at " << cut;
    }
  }
}

TEST(Utf8, OneReplacementPerByteWhereThePolicySaysSo) {
  std::string out;
  Utf8Assembler assembler(InvalidBytes::kOnePerByte);
  assembler.push("\xE2\x82x\xF0\x9F", out);
  assembler.finish(out);
  EXPECT_EQ(out, kR + kR + "x" + kR + kR);
}

TEST(Normalizer, NfcComposesAndReorders) {
  EXPECT_EQ(nfc("e\u0301"), "\u00e9");
  EXPECT_EQ(nfc("a\u0301\u0323"), "\u1ea1\u0301");  // marks sorted by class first
  EXPECT_EQ(nfc("\u1112\u1161\u11ab"), "\ud55c");   // Hangul
  EXPECT_EQ(nfc("\u0958"), "\u0915\u093c");         // excluded from composition
  EXPECT_EQ(nfc("\u212b"), "\u00c5");               // a singleton
  EXPECT_EQ(nfc("plain \u00e9"), "plain \u00e9");
}

// utf8proc alone takes quadratic time here.
TEST(Normalizer, LongRunsOfMarksTakeLinearTime) {
  std::string text = "a";
  for (int i = 0; i < 300000; ++i) text += "\u0301\u0323";
  EXPECT_EQ(nfc(text).size(), text.size() - 1 - 2 + 3 - 0);  // a + one dot below become one three-byte character
}

}  // namespace
}  // namespace quire::text
