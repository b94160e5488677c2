// AddedTokens: finds the tokens that are cut out of a text before it is encoded ("<|im_end|>", runs of line breaks): a byte
// trie, leftmost match, longest first, as Hugging Face's tokenizers does it. Immutable once built.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "text/flat_table.h"
#include "text/regex.h"
#include "text/vocabulary.h"

namespace quire::text {

// The parts of a text in which control tokens count as text: sorted, disjoint spans.
class Untrusted {
 public:
  static Untrusted all() { return Untrusted(true, {}); }
  static Untrusted none() { return Untrusted(false, {}); }
  explicit Untrusted(std::vector<Span> spans) : Untrusted(false, std::move(spans)) {}

  bool touches(std::size_t begin, std::size_t end) const;

 private:
  Untrusted(bool everything, std::vector<Span> spans) : everything_(everything), spans_(std::move(spans)) {}
  bool everything_;
  std::vector<Span> spans_;
};

class AddedTokens {
 public:
  struct Part {
    std::size_t begin = 0;  // bytes
    std::size_t end = 0;
    TokenId id = -1;  // -1: text between tokens
  };

  // `content`: what is looked for; the token's own, or its normalised form. Empty ones are never found.
  void add(const AddedToken& token, std::string_view content);
  bool empty() const { return tokens_.empty(); }

  // The parts of `text`, in order, none empty. Control tokens that touch `untrusted` are passed over as if they did not exist.
  std::vector<Part> cut(std::string_view text, const Untrusted& untrusted) const;

 private:
  struct Match {
    std::size_t end = 0;  // 0: none
    int token = -1;       // index
  };
  Match longest(std::string_view text, std::size_t begin, const Untrusted& untrusted) const;
  bool stands_alone(std::string_view text, std::size_t begin, std::size_t end) const;

  std::vector<AddedToken> tokens_;
  FlatTable<std::uint32_t> children_;  // (node, byte) to node
  std::vector<int> token_of_node_ = {-1};
  std::array<bool, 256> starts_{};  // bytes that some token begins with
};

}  // namespace quire::text
