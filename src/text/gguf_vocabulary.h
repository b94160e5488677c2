// GgufVocabulary: a GGUF file's tokenizer.ggml.* metadata as data, and the tokenizer made of it. Who reads the file fills it in
// (this room does not know the format); make_tokenizer checks every field and names the one that is wrong.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "quire/tokenizer.h"

namespace quire {

struct GgufVocabulary {
  std::string model;                // tokenizer.ggml.model: "gpt2" (byte-level BPE) or "llama" (SentencePiece)
  std::string pre;                  // tokenizer.ggml.pre: names the pre-tokeniser of "gpt2"
  std::vector<std::string> tokens;  // [V]
  std::vector<float> scores;        // [V] for "llama"; ignored otherwise
  std::vector<std::int32_t> types;  // [V] tokenizer.ggml.token_type; empty: all normal
  std::vector<std::string> merges;  // for "gpt2": "left right", best first
  TokenId bos = -1;                 // -1: the file does not say; so for all ids
  TokenId eos = -1;
  TokenId eot = -1;
  TokenId eom = -1;
  TokenId unk = -1;
  TokenId pad = -1;
  std::optional<bool> add_bos;
  std::optional<bool> add_eos;
  std::optional<bool> add_space_prefix;
  std::string chat_template;  // tokenizer.chat_template
};

// Throws Error(kInvalidFile) for a broken vocabulary, Error(kUnsupported) for a model or pre-tokeniser that quire does not know.
// Where a "llama" file wants a space before the text, it stands before each text that starts the whole or follows an added
// token, as in llama.cpp, on whose rules such files rely.
Tokenizer make_tokenizer(GgufVocabulary file);

}  // namespace quire
