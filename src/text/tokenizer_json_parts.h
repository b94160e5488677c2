// Readers of tokenizer.json's smaller elements: normalizer, pre_tokenizer, decoder, post_processor. Each takes the root
// element and throws Error(kUnsupported) naming what quire does not do.
#pragma once

#include "text/json_element.h"
#include "text/tokenizer_impl.h"

namespace quire::text {

Normalizer read_normalizer(const JsonElement& root);

struct PreTokenizerParts {
  PreTokenizer pretokenizer;
  bool byte_level = false;  // pieces are written in GPT-2's byte map
};
PreTokenizerParts read_pretokenizer(const JsonElement& root);

struct DecoderParts {
  ByteRules rules;
  bool has_byte_fallback = false;
  LeadingSpaces leading_spaces = LeadingSpaces::kKeep;
};
DecoderParts read_decoder(const JsonElement& root);

// Fills prefix_ids and suffix_ids.
void read_post_processor(const JsonElement& root, TokenizerParts& parts);

}  // namespace quire::text
