#include "text/bpe.h"

#include <algorithm>
#include <bit>

#include "core/check.h"
#include "core/utf8.h"

namespace quire::text {
namespace {

// Calls visit(offset, length, code point) for each character. REQUIRES: valid UTF-8.
template <typename Visit>
void for_each_character(std::string_view text, Visit&& visit) {
  for (std::size_t i = 0; i < text.size();) {
    unsigned length = 0;
    const char32_t code_point = decode_valid_utf8(text.data() + i, length);
    visit(i, length, code_point);
    i += length;
  }
}

// Descending by score; equal scores share a rank, so that the leftmost pair wins among them.
std::uint32_t rank_of(float score) {
  constexpr std::uint32_t kSign = 0x80000000u;
  const auto bits = std::bit_cast<std::uint32_t>(score + 0.0f);  // -0 becomes 0
  const std::uint32_t ascending = (bits & kSign) != 0 ? ~bits : bits | kSign;
  return ~ascending;
}

}  // namespace

Bpe::Bpe(std::vector<std::string_view> texts, std::span<const BpeMerge> merges, const BpeOptions& options)
    : options_(options), texts_(std::move(texts)), ids_(texts_.size()), merges_(merges.size()), is_direct_(texts_.size()) {
  index_texts();
  std::uint32_t rank = 0;
  for (const BpeMerge& m : merges) merges_.insert(pair_key(m.left, m.right), {rank++, m.result});
  index_neighbours();
}

Bpe::Bpe(std::vector<std::string_view> texts, std::span<const float> scores, const BpeOptions& options)
    : options_(options), texts_(std::move(texts)), ids_(texts_.size()), is_direct_(texts_.size()) {
  QUIRE_CHECK(scores.size() == texts_.size() && !options.bytes_are_units && options.unknown >= 0);
  index_texts();
  ranks_.reserve(scores.size());
  for (const float score : scores) ranks_.push_back(rank_of(score));
  index_neighbours();
}

void Bpe::index_texts() {
  for (std::size_t id = 0; id < texts_.size(); ++id) {
    if (texts_[id].empty()) continue;
    ids_.insert(texts_, static_cast<TokenId>(id));
    longest_text_ = std::max(longest_text_, texts_[id].size());
  }
  for (std::size_t b = 0; b < 256; ++b) {
    const char c = static_cast<char>(b);
    unit_symbols_[b] = options_.bytes_are_units || b < 128 ? find(std::string_view(&c, 1)) : kUnknown;
  }
  all_bytes_known_ = std::find(unit_symbols_.begin(), unit_symbols_.end(), kUnknown) == unit_symbols_.end();
}

TokenId Bpe::find(std::string_view text) const { return text.size() <= longest_text_ ? ids_.find(texts_, text) : -1; }

// A merge can only join neighbours that stand side by side in some token, so a piece may be cut between all others before
// merging. That keeps the queues short for models without pre-tokenisation, and changes nothing.
void Bpe::index_neighbours() {
  if (options_.bytes_are_units) return;
  for (const std::string_view text : texts_) {
    char32_t left = 0;
    for_each_character(text, [&](std::size_t offset, unsigned, char32_t right) {
      if (offset > 0 && left < 128 && right < 128) {
        ascii_neighbours_.set(left * 128 + right);
      } else if (offset > 0) {
        neighbours_.insert(pair_key(left, right), {});
      }
      left = right;
    });
  }
}

// Most words of a text are tokens. Where merging itself would reach the token, one look-up replaces it.
bool Bpe::merges_to_itself(TokenId id, Scratch& scratch) const {
  const auto index = static_cast<std::size_t>(id);
  Answer answer = is_direct_[index].load(std::memory_order_relaxed);
  if (answer == Answer::kUnasked) {
    load_symbols(texts_[index], scratch);
    merge(texts_[index], scratch);
    answer = scratch.symbols[0].next < 0 && scratch.symbols[0].symbol == id ? Answer::kYes : Answer::kNo;
    is_direct_[index].store(answer, std::memory_order_relaxed);  // whoever asks at the same time finds the same
  }
  return answer == Answer::kYes;
}

bool Bpe::may_join(char32_t left, char32_t right) const {
  if (left < 128 && right < 128) return ascii_neighbours_[left * 128 + right];
  return neighbours_.find(pair_key(left, right)) != nullptr;
}

void Bpe::encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& out) const {
  if (piece.empty()) return;
  scratch.last_is_unknown = false;
  if (options_.ignore_merges) {
    if (const TokenId id = find(piece); id >= 0) {
      out.push_back(id);
      return;
    }
  }
  if (options_.unknown < 0 && vanishes_in(piece)) {  // what it stood between become neighbours
    encode_parts(without_vanishing(piece), scratch, out);
  } else {
    encode_parts(piece, scratch, out);
  }
}

void Bpe::encode_parts(std::string_view piece, Scratch& scratch, std::vector<TokenId>& out) const {
  if (piece.empty()) return;
  if (options_.bytes_are_units) return encode_part(piece, scratch, out);
  std::size_t begin = 0;
  char32_t left = 0;
  for_each_character(piece, [&](std::size_t offset, unsigned, char32_t right) {
    if (offset > 0 && !may_join(left, right)) {
      encode_part(piece.substr(begin, offset - begin), scratch, out);
      begin = offset;
    }
    left = right;
  });
  encode_part(piece.substr(begin), scratch, out);
}

bool Bpe::vanishes(std::string_view unit) const {
  const auto lead = static_cast<unsigned char>(unit[0]);
  const bool has_symbol = options_.bytes_are_units || lead < 128 ? unit_symbols_[lead] != kUnknown : find(unit) != kUnknown;
  return !has_symbol && !has_byte_tokens(unit);
}

template <typename Visit>
void Bpe::for_each_unit(std::string_view piece, Visit&& visit) const {
  for (std::size_t i = 0; i < piece.size();) {
    unsigned length = 1;
    if (!options_.bytes_are_units) decode_valid_utf8(piece.data() + i, length);
    visit(piece.substr(i, length));
    i += length;
  }
}

bool Bpe::vanishes_in(std::string_view piece) const {
  if (options_.bytes_are_units && all_bytes_known_) return false;
  bool any = false;
  for_each_unit(piece, [&](std::string_view unit) { any = any || vanishes(unit); });
  return any;
}

std::string Bpe::without_vanishing(std::string_view piece) const {
  std::string rest;
  for_each_unit(piece, [&](std::string_view unit) {
    if (!vanishes(unit)) rest += unit;
  });
  return rest;
}

bool Bpe::has_byte_tokens(std::string_view character) const {
  return options_.byte_fallback && std::all_of(character.begin(), character.end(),
                                               [&](char c) { return options_.byte_tokens[static_cast<unsigned char>(c)] >= 0; });
}

void Bpe::encode_part(std::string_view part, Scratch& scratch, std::vector<TokenId>& out) const {
  if (const TokenId id = find(part); id >= 0 && merges_to_itself(id, scratch)) {
    out.push_back(id);
    scratch.last_is_unknown = false;
    return;
  }
  load_symbols(part, scratch);
  merge(part, scratch);
  emit(part, scratch, out);
}

void Bpe::load_symbols(std::string_view part, Scratch& scratch) const {
  scratch.symbols.clear();
  for (std::size_t i = 0; i < part.size();) {
    unsigned length = 1;
    const auto lead = static_cast<unsigned char>(part[i]);
    std::int32_t symbol = kUnknown;
    if (options_.bytes_are_units || lead < 128) {
      symbol = unit_symbols_[lead];
    } else {
      decode_valid_utf8(part.data() + i, length);
      symbol = find(part.substr(i, length));
    }
    const auto index = static_cast<std::int32_t>(scratch.symbols.size());
    const auto begin = static_cast<std::uint32_t>(i);
    scratch.symbols.push_back({begin, begin + length, symbol, index - 1, index + 1});
    i += length;
  }
  scratch.symbols.back().next = -1;
}

// Best rank first, leftmost among equals. A candidate whose symbols have changed since is skipped when it comes up.
void Bpe::merge(std::string_view part, Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& queue = scratch.queue;
  const auto worse = [](const Scratch::Candidate& a, const Scratch::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
  };
  const auto at = [&](std::int32_t index) -> Scratch::Symbol& { return symbols[static_cast<std::size_t>(index)]; };
  const auto join = [&](const Scratch::Symbol& left, const Scratch::Symbol& right) -> std::optional<Joined> {
    if (!ranks_.empty()) {
      const TokenId id = find(part.substr(left.begin, right.end - left.begin));
      return id < 0 ? std::nullopt : std::optional(Joined{ranks_[static_cast<std::size_t>(id)], id});
    }
    if (left.symbol == kUnknown || right.symbol == kUnknown) return std::nullopt;
    const Joined* joined = merges_.find(pair_key(left.symbol, right.symbol));
    return joined == nullptr ? std::nullopt : std::optional(*joined);
  };
  const auto candidate = [&](std::int32_t left) {
    const std::int32_t right = left < 0 ? -1 : at(left).next;
    const std::optional<Joined> joined = right < 0 ? std::nullopt : join(at(left), at(right));
    if (!joined) return false;
    queue.push_back({joined->rank, left, right, at(right).end, joined->symbol});
    return true;
  };

  queue.clear();
  for (std::int32_t i = 0; i + 1 < static_cast<std::int32_t>(symbols.size()); ++i) candidate(i);
  std::make_heap(queue.begin(), queue.end(), worse);
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), worse);
    const Scratch::Candidate best = queue.back();
    queue.pop_back();
    Scratch::Symbol& left = at(best.left);
    Scratch::Symbol& right = at(best.right);
    if (left.next != best.right || right.end != best.end) continue;
    left.symbol = best.symbol;
    left.end = right.end;
    left.next = right.next;
    right.next = -1;
    right.end = right.begin;  // gone
    if (left.next >= 0) at(left.next).previous = best.left;
    if (candidate(left.previous)) std::push_heap(queue.begin(), queue.end(), worse);
    if (candidate(best.left)) std::push_heap(queue.begin(), queue.end(), worse);
  }
}

void Bpe::emit(std::string_view part, Scratch& scratch, std::vector<TokenId>& out) const {
  for (std::int32_t i = 0; i >= 0; i = scratch.symbols[static_cast<std::size_t>(i)].next) {
    const Scratch::Symbol& s = scratch.symbols[static_cast<std::size_t>(i)];
    if (s.symbol != kUnknown) {
      out.push_back(s.symbol);
      scratch.last_is_unknown = false;
    } else {
      emit_unknown(part.substr(s.begin, s.end - s.begin), scratch, out);
    }
  }
}

void Bpe::emit_unknown(std::string_view character, Scratch& scratch, std::vector<TokenId>& out) const {
  if (has_byte_tokens(character)) {
    for (const char c : character) out.push_back(options_.byte_tokens[static_cast<unsigned char>(c)]);
    scratch.last_is_unknown = false;
    return;
  }
  if (options_.unknown >= 0 && !(options_.fuse_unknown && scratch.last_is_unknown)) out.push_back(options_.unknown);
  scratch.last_is_unknown = true;
}

}  // namespace quire::text
