// Bpe: byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909) of one piece of text, by merge ranks or by SentencePiece's
// scores. Both are one table from pairs of symbols to a rank and the joined symbol; a queue applies it in O(n log n).
// Owns the table, refers to the texts of a Vocabulary, knows nothing of pre-tokenisation. Any number of threads may encode.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "quire/request.h"
#include "text/flat_table.h"

namespace quire::text {

struct BpeOptions {
  bool bytes_are_units = false;            // else characters are: start from those
  bool ignore_merges = false;              // a piece that is a token is that token, whatever the merges say
  bool byte_fallback = false;              // a character that no token covers becomes the tokens of its bytes, if all exist
  bool fuse_unknown = false;               // neighbouring unknown characters become one unknown token
  TokenId unknown = -1;                    // -1: unknown characters vanish
  std::array<TokenId, 256> byte_tokens{};  // for byte_fallback; -1: none
};

struct BpeMerge {
  TokenId left = -1;
  TokenId right = -1;
  TokenId result = -1;
};

class Bpe {
 public:
  // `texts`: what token i covers; empty: encoding never yields it. The views must outlive this object.
  // `merges`: best first.
  Bpe(std::vector<std::string_view> texts, std::span<const BpeMerge> merges, const BpeOptions& options);
  // SentencePiece's rule: join the neighbours whose concatenation is the token with the highest score.
  Bpe(std::vector<std::string_view> texts, std::span<const float> scores, const BpeOptions& options);

  // Working memory of encode(), to be kept between calls.
  class Scratch;

  // Appends the ids of `piece`. REQUIRES: valid UTF-8, under 2^31 bytes.
  void encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& out) const;

 private:
  struct Joined {
    std::uint32_t rank;
    std::int32_t symbol;
  };
  // A symbol is a token id, kUnknown, or texts_.size() + i: a character that only occurs inside of tokens.
  static constexpr std::int32_t kUnknown = -1;

  void index_texts();
  void index_neighbours();
  void index_direct();
  void derive_merges(std::span<const float> scores);
  std::int32_t part_symbol(std::string_view part);
  std::int32_t character_symbol(std::string_view character) const;
  const Joined* find_merge(std::int32_t left, std::int32_t right) const;
  bool may_join(char32_t left, char32_t right) const;
  // Units without any token vanish where there is no unknown token.
  template <typename Visit>
  void for_each_unit(std::string_view piece, Visit&& visit) const;
  bool has_byte_tokens(std::string_view character) const;
  bool vanishes(std::string_view unit) const;
  bool vanishes_in(std::string_view piece) const;
  std::string without_vanishing(std::string_view piece) const;
  void encode_parts(std::string_view piece, Scratch& scratch, std::vector<TokenId>& out) const;
  void encode_part(std::string_view part, Scratch& scratch, std::vector<TokenId>& out) const;
  void load_symbols(std::string_view part, Scratch& scratch) const;
  void merge(Scratch& scratch) const;
  void emit(std::string_view part, Scratch& scratch, std::vector<TokenId>& out) const;
  void emit_unknown(std::string_view character, Scratch& scratch, std::vector<TokenId>& out) const;

  BpeOptions options_;
  std::vector<std::string_view> texts_;
  std::unordered_map<std::string_view, TokenId> ids_;
  std::unordered_map<std::string_view, std::int32_t> inner_characters_;
  std::array<std::int32_t, 256> unit_symbols_{};  // of each byte, or of each ASCII character
  bool all_bytes_known_ = false;
  std::size_t longest_text_ = 0;  // bytes
  FlatTable<Joined> merges_;
  FlatTable<char> neighbours_;               // pairs of characters that stand side by side in some token
  std::bitset<128 * 128> ascii_neighbours_;  // the same, of ASCII
  std::vector<bool> direct_;                 // merging the token's own text yields just this token
};

class Bpe::Scratch {
 private:
  friend class Bpe;
  struct Symbol {
    std::uint32_t begin;  // byte offset in the part
    std::uint32_t end;
    std::int32_t symbol;
    std::int32_t previous;  // index, -1: none
    std::int32_t next;
  };
  struct Candidate {
    std::uint32_t rank;
    std::int32_t left;  // indices of symbols
    std::int32_t right;
    std::uint32_t end;  // of the right one; symbols only grow, so another end means that one of the two has changed
    std::int32_t symbol;
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> queue;
  bool last_is_unknown = false;
};

}  // namespace quire::text
