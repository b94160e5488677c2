#include "core/utf8.h"

#include <cstdint>
#include <cstring>

namespace quire {
namespace {

// Length of the ASCII run at the start, in steps of eight bytes.
std::size_t ascii_prefix(std::string_view text) {
  std::size_t i = 0;
  while (i + 8 <= text.size()) {
    std::uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    if ((word & 0x8080808080808080u) != 0) break;
    i += 8;
  }
  return i;
}

}  // namespace

Utf8Character decode_utf8(std::string_view text) {
  const auto byte = [&](unsigned i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {lead, 1, Utf8Status::kValid};
  unsigned length = 0;
  unsigned low = 0x80;  // bounds of the second byte: no overlong forms, no surrogates, nothing over U+10FFFF
  unsigned high = 0xBF;
  char32_t code_point = 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
    code_point = lead & 0x1F;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    code_point = lead & 0x0F;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    code_point = lead & 0x07;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {0xFFFD, 1, Utf8Status::kInvalid};
  }
  for (unsigned i = 1; i < length; ++i) {
    if (i >= text.size()) return {0xFFFD, i, Utf8Status::kIncomplete};
    if (byte(i) < low || byte(i) > high) return {0xFFFD, i, Utf8Status::kInvalid};
    code_point = (code_point << 6) | (byte(i) & 0x3Fu);
    low = 0x80;
    high = 0xBF;
  }
  return {code_point, length, Utf8Status::kValid};
}

char32_t decode_valid_utf8(const char* text, unsigned& length) {
  const auto byte = [&](unsigned i) { return static_cast<char32_t>(static_cast<unsigned char>(text[i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) {
    length = 1;
    return lead;
  }
  if (lead < 0xE0) {
    length = 2;
    return ((lead & 0x1F) << 6) | (byte(1) & 0x3F);
  }
  if (lead < 0xF0) {
    length = 3;
    return ((lead & 0x0F) << 12) | ((byte(1) & 0x3F) << 6) | (byte(2) & 0x3F);
  }
  length = 4;
  return ((lead & 0x07) << 18) | ((byte(1) & 0x3F) << 12) | ((byte(2) & 0x3F) << 6) | (byte(3) & 0x3F);
}

void append_utf8(char32_t code_point, std::string& out) {
  const auto push = [&](char32_t byte) { out.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
  if (code_point < 0x80) {
    push(code_point);
  } else if (code_point < 0x800) {
    push(0xC0 | (code_point >> 6));
    push(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    push(0xE0 | (code_point >> 12));
    push(0x80 | ((code_point >> 6) & 0x3F));
    push(0x80 | (code_point & 0x3F));
  } else {
    push(0xF0 | (code_point >> 18));
    push(0x80 | ((code_point >> 12) & 0x3F));
    push(0x80 | ((code_point >> 6) & 0x3F));
    push(0x80 | (code_point & 0x3F));
  }
}

bool is_valid_utf8(std::string_view text) {
  while (!text.empty()) {
    text.remove_prefix(ascii_prefix(text));
    for (int i = 0; i < 16 && !text.empty(); ++i) {  // then some characters one by one
      const Utf8Character c = decode_utf8(text);
      if (c.status != Utf8Status::kValid) return false;
      text.remove_prefix(c.length);
    }
  }
  return true;
}

std::string repair_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 16);
  Utf8Assembler assembler(InvalidBytes::kOnePerSubpart);
  assembler.push(text, out);
  assembler.finish(out);
  return out;
}

void Utf8Assembler::append_broken(unsigned num_bytes, std::string& out) const {
  const unsigned count = policy_ == InvalidBytes::kOnePerByte ? num_bytes : 1;
  for (unsigned i = 0; i < count; ++i) out += kReplacementCharacter;
}

void Utf8Assembler::push(std::string_view bytes, std::string& out) {
  std::string joined;
  if (!tail_.empty()) {
    joined = tail_;
    joined += bytes;
    bytes = joined;
    tail_.clear();
  }
  while (!bytes.empty()) {
    if (const std::size_t n = ascii_prefix(bytes); n > 0) {
      out += bytes.substr(0, n);
      bytes.remove_prefix(n);
      continue;
    }
    const Utf8Character c = decode_utf8(bytes);
    if (c.status == Utf8Status::kIncomplete) {
      tail_ = bytes;
      return;
    }
    if (c.status == Utf8Status::kValid) {
      out += bytes.substr(0, c.length);
    } else {
      append_broken(c.length, out);
    }
    bytes.remove_prefix(c.length);
  }
}

void Utf8Assembler::finish(std::string& out) {
  if (tail_.empty()) return;
  append_broken(static_cast<unsigned>(tail_.size()), out);
  tail_.clear();
}

}  // namespace quire
