// printable: text from a server or file, fit for a message: quoted, cut, and without control bytes.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace quire::bench {

inline std::string printable(std::string_view text, std::size_t most = 120) {
  std::string out = "'";
  for (const char c : text.substr(0, most)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7F)
      out += fmt::format("\\x{:02x}", byte);
    else
      out += c;
  }
  return out + (text.size() > most ? "...'" : "'");
}

}  // namespace quire::bench
