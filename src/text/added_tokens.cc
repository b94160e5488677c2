#include "text/added_tokens.h"

#include <algorithm>

#include "text/character_class.h"

namespace quire::text {
namespace {

std::uint64_t edge(std::uint32_t node, char byte) { return (std::uint64_t{node} << 8) | static_cast<unsigned char>(byte); }

}  // namespace

bool Untrusted::touches(std::size_t begin, std::size_t end) const {
  if (everything_) return true;
  const auto after =
      std::upper_bound(spans_.begin(), spans_.end(), begin, [](std::size_t at, const Span& s) { return at < s.end; });
  return after != spans_.end() && after->begin < end;
}

void AddedTokens::add(const AddedToken& token, std::string_view content) {
  if (content.empty()) return;
  std::uint32_t node = 0;
  for (const char c : content) {
    const auto next = static_cast<std::uint32_t>(token_of_node_.size());
    if (children_.insert(edge(node, c), next)) token_of_node_.push_back(-1);
    node = *children_.find(edge(node, c));
  }
  starts_[static_cast<unsigned char>(content[0])] = true;
  token_of_node_[node] = static_cast<int>(tokens_.size());
  tokens_.push_back(token);
}

AddedTokens::Match AddedTokens::longest(std::string_view text, std::size_t begin, const Untrusted& untrusted) const {
  Match match;
  std::uint32_t node = 0;
  for (std::size_t i = begin; i < text.size(); ++i) {
    const std::uint32_t* child = children_.find(edge(node, text[i]));
    if (child == nullptr) break;
    node = *child;
    const int token = token_of_node_[node];
    if (token < 0) continue;
    if (tokens_[static_cast<std::size_t>(token)].special && untrusted.touches(begin, i + 1)) continue;
    match = {i + 1, token};
  }
  return match;
}

bool AddedTokens::stands_alone(std::string_view text, std::size_t begin, std::size_t end) const {
  const char32_t before = last_character(text.substr(0, begin));
  const char32_t after = first_character(text.substr(end));
  return (begin == 0 || !is_word_character(before)) && (end == text.size() || !is_word_character(after));
}

std::vector<AddedTokens::Part> AddedTokens::cut(std::string_view text, const Untrusted& untrusted) const {
  std::vector<Part> parts;
  std::size_t done = 0;  // everything before is in `parts`
  std::size_t at = 0;
  while (at < text.size()) {
    if (!starts_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    const Match match = longest(text, at, untrusted);
    if (match.end == 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<std::size_t>(match.token)];
    if (token.single_word && !stands_alone(text, at, match.end)) {
      at = match.end;
      continue;
    }
    std::size_t begin = at;
    std::size_t end = match.end;
    if (token.lstrip) begin -= trailing_white_space(text.substr(done, at - done));
    if (token.rstrip) end += leading_white_space(text.substr(end));
    if (begin > done) parts.push_back({done, begin, -1});
    parts.push_back({begin, end, token.id});
    done = end;
    at = end;
  }
  if (done < text.size()) parts.push_back({done, text.size(), -1});
  return parts;
}

}  // namespace quire::text
