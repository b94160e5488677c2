#include "text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>

#include "core/check.h"
#include "core/utf8.h"

namespace quire::text {
namespace {

// No character below U+0300 (CC 80) is reordered, or composed with the one before it.
bool is_surely_nfc(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0xCC; });
}

int combining_class(utf8proc_int32_t code_point) { return utf8proc_get_property(code_point)->combining_class; }

std::string replace_spans(std::string_view text, const std::vector<Span>& spans, std::string_view to) {
  std::string out;
  out.reserve(text.size() + spans.size() * to.size());
  std::size_t begin = 0;
  for (const Span& span : spans) {
    out += text.substr(begin, span.begin - begin);
    out += to;
    begin = span.end;
  }
  out += text.substr(begin);
  return out;
}

std::vector<Span> find_literal(std::string_view text, std::string_view from) {
  std::vector<Span> spans;
  std::size_t begin = 0;
  for (std::size_t at; !from.empty() && (at = text.find(from, begin)) != std::string_view::npos; begin = at + from.size()) {
    spans.push_back({at, at + from.size()});
  }
  return spans;
}

}  // namespace

// utf8proc's own sorting of combining marks takes quadratic time, so the marks are sorted here (UAX #15, canonical ordering).
std::string nfc(std::string_view text) {
  if (is_surely_nfc(text)) return std::string(text);
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    unsigned length = 0;
    const auto c = static_cast<utf8proc_int32_t>(decode_valid_utf8(text.data() + i, length));
    i += length;
    utf8proc_int32_t parts[8];
    int boundary = 0;
    const auto n = utf8proc_decompose_char(c, parts, 8, UTF8PROC_DECOMPOSE, &boundary);
    QUIRE_CHECK(n > 0 && n <= 8);
    points.insert(points.end(), parts, parts + n);
  }
  for (auto begin = points.begin(); begin != points.end();) {
    const auto is_mark = [](utf8proc_int32_t c) { return combining_class(c) != 0; };
    begin = std::find_if(begin, points.end(), is_mark);
    const auto end = std::find_if_not(begin, points.end(), is_mark);
    std::stable_sort(begin, end, [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
  const auto size = utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()),
                                             static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  QUIRE_CHECK(size >= 0);
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < size; ++i) append_utf8(static_cast<char32_t>(points[static_cast<std::size_t>(i)]), out);
  return out;
}

std::string Normalizer::apply(std::string_view text) const {
  std::string out(text);
  for (const auto& step : steps_) {
    if (std::holds_alternative<Nfc>(step)) {
      out = nfc(out);
    } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
      if (!out.empty()) out.insert(0, prepend->prefix);
    } else {
      const auto& replace = std::get<Replace>(step);
      out = replace_spans(out, replace.pattern ? replace.pattern->find_all(out) : find_literal(out, replace.from), replace.to);
    }
  }
  return out;
}

}  // namespace quire::text
