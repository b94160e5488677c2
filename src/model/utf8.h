// is_utf8: whether bytes are well-formed UTF-8 (Unicode 15, table 3-7): no overlong forms, surrogates or values past U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace quire {

constexpr bool is_utf8(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<std::uint8_t>(text[i++]);
    if (lead < 0x80) continue;
    const int num_more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
    if (lead < 0xC2 || lead > 0xF4) return false;
    for (int k = 0; k < num_more; ++k, ++i) {
      if (i == text.size()) return false;
      const auto byte = static_cast<std::uint8_t>(text[i]);
      std::uint8_t low = 0x80, high = 0xBF;  // narrower for the second byte of four leads
      if (k == 0 && lead == 0xE0) low = 0xA0;
      if (k == 0 && lead == 0xED) high = 0x9F;
      if (k == 0 && lead == 0xF0) low = 0x90;
      if (k == 0 && lead == 0xF4) high = 0x8F;
      if (byte < low || byte > high) return false;
    }
  }
  return true;
}

}  // namespace quire
