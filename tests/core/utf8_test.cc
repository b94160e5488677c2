#include "core/utf8.h"

#include <gtest/gtest.h>

namespace quire {
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

// Every sequence of two bytes, and the third and fourth bytes at their bounds, behind ASCII of every length modulo eight.
TEST(Utf8, ValidityIsWhatDecodingSays) {
  const auto valid_by_decoding = [](std::string_view text) {
    while (!text.empty()) {
      const Utf8Character c = decode_utf8(text);
      if (c.status != Utf8Status::kValid) return false;
      text.remove_prefix(c.length);
    }
    return true;
  };
  std::size_t num_valid = 0;
  for (unsigned pair = 0; pair < 0x10000; ++pair) {
    for (const std::string_view tail : {"", "\x7F", "\x80", "\xBF", "\xC0", "\x80\x80", "\xBF\xBF", "\xBF\x7F"}) {
      std::string text(pair % 9, 'a');
      text += static_cast<char>(pair >> 8);
      text += static_cast<char>(pair & 0xFF);
      text += tail;
      ASSERT_EQ(is_valid_utf8(text), valid_by_decoding(text)) << pair << " and " << tail.size();
      num_valid += is_valid_utf8(text) ? 1 : 0;
    }
  }
  // Table 3-7, counted: characters of two, three and four bytes by their leads and second bytes.
  const std::size_t two = 30 * 64;
  const std::size_t three = 14 * 64 + 32 + 32;  // E1-EC, EE and EF; E0 from A0; ED to 9F
  const std::size_t four = 3 * 64 + 48 + 16;    // F1-F3; F0 from 90; F4 to 8F
  const std::size_t no_tail = 128 * 128 + two;
  const std::size_t one_more = 128 * 30 + three;  // the second of the pair may be a lead, too
  const std::size_t two_more = 128 * 15 + four;
  EXPECT_EQ(num_valid, 2 * no_tail + 3 * one_more + 2 * two_more);
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

}  // namespace
}  // namespace quire
