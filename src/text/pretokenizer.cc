#include "text/pretokenizer.h"

#include <algorithm>

namespace quire::text {
namespace {

struct Segment {
  Span span;
  bool is_match;
};

std::vector<Span> find_literal(std::string_view text, std::string_view literal) {
  std::vector<Span> spans;
  for (std::size_t at = text.find(literal); at != std::string_view::npos; at = text.find(literal, at + literal.size())) {
    spans.push_back({at, at + literal.size()});
  }
  return spans;
}

// `matches` of a piece that is `size` bytes long, with what lies between them.
std::vector<Segment> segments_of(const std::vector<Span>& matches, std::size_t size, bool inverted) {
  std::vector<Segment> segments;
  segments.reserve(matches.size() * 2 + 1);
  std::size_t at = 0;
  for (const Span& match : matches) {
    if (match.begin > at) segments.push_back({{at, match.begin}, inverted});
    segments.push_back({match, !inverted});
    at = match.end;
  }
  if (at < size) segments.push_back({{at, size}, inverted});
  return segments;
}

void push(Span span, std::size_t base, std::vector<Span>& out) { out.push_back({base + span.begin, base + span.end}); }

// Appends the pieces that `behavior` makes of the segments; `base` is where the piece begins in the text.
void join_segments(const std::vector<Segment>& segments, SplitBehavior behavior, std::size_t base, std::vector<Span>& out) {
  const std::size_t first = out.size();
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const auto& [span, is_match] = segments[i];
    const bool before_is_match = i > 0 && segments[i - 1].is_match;
    bool joins = false;  // the piece before
    switch (behavior) {
      case SplitBehavior::kRemoved:
        if (is_match) continue;
        break;
      case SplitBehavior::kIsolated:
        break;
      case SplitBehavior::kMergedWithPrevious:
        joins = is_match && !before_is_match;
        break;
      // A match joins what follows, unless that is a match too.
      case SplitBehavior::kMergedWithNext:
        joins = before_is_match && !is_match;
        break;
      case SplitBehavior::kContiguous:
        joins = is_match == before_is_match;
        break;
    }
    if (joins && out.size() > first) {
      out.back().end = base + span.end;
    } else {
      push(span, base, out);
    }
  }
  // Empty matches have had their say.
  out.erase(std::remove_if(out.begin() + static_cast<std::ptrdiff_t>(first), out.end(), [](Span s) { return s.begin == s.end; }),
            out.end());
}

}  // namespace

void PreTokenizer::add_split(Regex pattern, SplitBehavior behavior, bool inverted) {
  steps_.emplace_back(Split{std::move(pattern), behavior, inverted});
}
void PreTokenizer::add_split(KnownPattern pattern, SplitBehavior behavior, bool inverted) {
  steps_.emplace_back(Split{pattern, behavior, inverted});
}
void PreTokenizer::add_split_literal(std::string delimiter, SplitBehavior behavior, bool inverted) {
  steps_.emplace_back(Split{std::move(delimiter), behavior, inverted});
}
void PreTokenizer::add_prefix_space() { steps_.emplace_back(Prefix{}); }
void PreTokenizer::add_metaspace(std::string mark, PrependScheme scheme, bool split) {
  steps_.emplace_back(Metaspace{std::move(mark), scheme, split});
}

void PreTokenizer::cut(std::string_view text, bool at_text_start, Pieces& pieces) const {
  pieces.text = text;
  pieces.spans.clear();
  if (!text.empty()) pieces.spans.push_back({0, text.size()});
  for (const auto& step : steps_) {
    if (const auto* split = std::get_if<Split>(&step)) {
      run(*split, pieces);
    } else if (const auto* metaspace = std::get_if<Metaspace>(&step)) {
      run(*metaspace, at_text_start, pieces);
    } else {
      run(std::get<Prefix>(step), pieces);
    }
  }
}

void PreTokenizer::run(const Split& split, Pieces& pieces) {
  std::vector<Span> out;
  for (const Span& span : pieces.spans) {
    const std::string_view piece = pieces.text.substr(span.begin, span.end - span.begin);
    std::vector<Span> matches;
    if (const auto* regex = std::get_if<Regex>(&split.pattern)) {
      matches = regex->find_all(piece);
    } else if (const auto* known = std::get_if<KnownPattern>(&split.pattern)) {
      matches = find_all(*known, piece);
    } else {
      matches = find_literal(piece, std::get<std::string>(split.pattern));
    }
    join_segments(segments_of(matches, piece.size(), split.inverted), split.behavior, span.begin, out);
  }
  pieces.spans = std::move(out);
}

void PreTokenizer::run(const Prefix&, Pieces& pieces) {
  std::string text;
  for (Span& span : pieces.spans) {
    const std::string_view piece = pieces.text.substr(span.begin, span.end - span.begin);
    span.begin = text.size();
    if (!piece.starts_with(' ')) text += ' ';
    text += piece;
    span.end = text.size();
  }
  pieces.storage = std::move(text);
  pieces.text = pieces.storage;
}

void PreTokenizer::run(const Metaspace& metaspace, bool at_text_start, Pieces& pieces) {
  std::string text;
  std::vector<Span> out;
  for (const Span& span : pieces.spans) {
    const std::string_view piece = pieces.text.substr(span.begin, span.end - span.begin);
    const std::size_t begin = text.size();
    const bool is_first = at_text_start && span.begin == 0;
    const bool prepends = metaspace.scheme == PrependScheme::kAlways || (metaspace.scheme == PrependScheme::kFirst && is_first);
    if (prepends && !piece.starts_with(' ') && !piece.starts_with(metaspace.mark)) text += metaspace.mark;
    for (const char c : piece) {
      if (c == ' ') {
        text += metaspace.mark;
      } else {
        text += c;
      }
    }
    const std::string_view marked = std::string_view(text).substr(begin);
    const auto marks = metaspace.split ? find_literal(marked, metaspace.mark) : std::vector<Span>{};
    join_segments(segments_of(marks, marked.size(), false), SplitBehavior::kMergedWithNext, begin, out);
  }
  pieces.storage = std::move(text);
  pieces.text = pieces.storage;
  pieces.spans = std::move(out);
}

}  // namespace quire::text
