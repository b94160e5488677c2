// Bpe: byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909) of one piece of text, by merge ranks or by SentencePiece's
// scores. Ranks are a table from pairs of symbols to a rank and the joined symbol; by scores the joined text is looked up. A
// queue applies either in O(n log n). Owns its tables, refers to the texts of a Vocabulary, knows nothing of pre-tokenisation.
// Any number of threads may encode.
#pragma once

#include <array>
#include <atomic>
#include <bitset>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/request.h"
#include "text/flat_table.h"
#include "text/text_index.h"

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
  // REQUIRES: an unknown token, characters as units, scores finite.
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
  // A symbol is a token id, or a character that is no token.
  static constexpr std::int32_t kUnknown = -1;
  enum class Answer : std::uint8_t { kUnasked, kYes, kNo };

  void index_texts();
  void index_neighbours();
  TokenId find(std::string_view text) const;  // -1: none
  bool merges_to_itself(TokenId id, Scratch& scratch) const;
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
  void merge(std::string_view part, Scratch& scratch) const;
  void emit(std::string_view part, Scratch& scratch, std::vector<TokenId>& out) const;
  void emit_unknown(std::string_view character, Scratch& scratch, std::vector<TokenId>& out) const;

  BpeOptions options_;
  std::vector<std::string_view> texts_;
  TextIndex ids_;
  std::array<std::int32_t, 256> unit_symbols_{};  // of each byte, or of each ASCII character
  bool all_bytes_known_ = false;
  std::size_t longest_text_ = 0;             // bytes
  FlatTable<Joined> merges_;                 // by ranks: of pairs of symbols
  std::vector<std::uint32_t> ranks_;         // by scores: of tokens; empty: by ranks
  FlatTable<Nothing> neighbours_;            // pairs of characters that stand side by side in some token
  std::bitset<128 * 128> ascii_neighbours_;  // the same, of ASCII
  // Whether merging the token's own text yields just this token. Found out when it is first asked.
  mutable std::vector<std::atomic<Answer>> is_direct_;
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
