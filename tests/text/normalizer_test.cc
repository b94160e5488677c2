#include "text/normalizer.h"

#include <gtest/gtest.h>

namespace quire::text {
namespace {

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
