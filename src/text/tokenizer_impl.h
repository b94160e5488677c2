// Tokenizer::Impl: the parts of a tokenizer and the order in which they work: cut out added tokens, normalise, cut out the
// rest of them, pre-tokenise, merge. Made by tokenizer_json.cc and gguf_vocabulary.cc; immutable, any number of threads.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/utf8.h"
#include "quire/tokenizer.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/pretokenizer.h"
#include "text/vocabulary.h"

namespace quire {
namespace text {

// What decoding does to spaces at the start of a text.
enum class LeadingSpaces {
  kKeep,
  kStripOne,
  kStripFirstToken,  // all of the first token's
};

// Everything that a file says. `vocabulary` holds the texts that `bpe` refers to.
struct TokenizerParts {
  Vocabulary vocabulary;
  Bpe bpe;
  std::vector<AddedToken> added_tokens;
  Normalizer normalizer;
  PreTokenizer pretokenizer;
  std::string text_prefix;  // before each text that starts the whole or follows an added token; empty: nothing
  InvalidBytes invalid_bytes = InvalidBytes::kOnePerSubpart;
  LeadingSpaces leading_spaces = LeadingSpaces::kKeep;
  std::vector<TokenId> prefix_ids = {};  // EncodeOptions::add_special
  std::vector<TokenId> suffix_ids = {};
  TokenId bos = -1;
  TokenId eos = -1;
  std::vector<TokenId> end_ids = {};
  std::string chat_template = {};
};

// Ids of `end_ids` and of the control tokens that by their text end a turn or a text, ascending, each once.
std::vector<TokenId> complete_end_ids(const Vocabulary& vocabulary, std::vector<TokenId> end_ids);

// A stretch of a dialogue: the template's own text, or that of a person, in which control tokens are text.
struct TextSegment {
  std::string text;
  bool trusted = false;
};

}  // namespace text

class Tokenizer::Impl {
 public:
  explicit Impl(text::TokenizerParts parts);

  const text::TokenizerParts& parts() const { return parts_; }
  const text::Vocabulary& vocabulary() const { return parts_.vocabulary; }

  // Ids of the segments' joined text: what is not a control token is encoded as if it were one text. REQUIRES: valid UTF-8.
  std::vector<TokenId> encode(std::string_view text, const text::Untrusted& untrusted, bool add_special) const;
  std::vector<TokenId> encode(std::span<const text::TextSegment> segments) const;

 private:
  struct Encoding;  // one call's working state
  void encode_raw(std::string_view text, bool trusted, Encoding& encoding) const;
  void encode_normalized(std::string_view text, Encoding& encoding) const;

  text::TokenizerParts parts_;
  text::AddedTokens raw_tokens_;         // looked for in the text as it is
  text::AddedTokens normalized_tokens_;  // looked for after normalisation
};

namespace text {

// Turns tokens into valid UTF-8, the same text for any split into calls.
class TextAssembler {
 public:
  TextAssembler(const TokenizerParts& parts, bool at_text_start)
      : parts_(&parts), utf8_(parts.invalid_bytes), at_start_(at_text_start) {}
  // Throws Error(kInvalidArgument) for an id out of the vocabulary.
  void push(TokenId id, bool skip_special, std::string& out);
  void finish(std::string& out) { utf8_.finish(out); }

 private:
  const TokenizerParts* parts_;
  Utf8Assembler utf8_;
  bool at_start_;  // nothing has come yet
};

}  // namespace text
}  // namespace quire
