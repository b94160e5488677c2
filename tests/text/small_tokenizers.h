// Vocabularies of a few tokens for unit tests, made through the library's own loaders.
#pragma once

#include <string>
#include <vector>

#include "quire/tokenizer.h"
#include "text/gguf_vocabulary.h"

namespace quire::testing {

// Byte-level: the 256 bytes (ids 0 to 255), then the merges' results, then `control` and `user_defined`.
GgufVocabulary byte_level_vocabulary(const std::string& pre, const std::vector<std::string>& merges,
                                     const std::vector<std::string>& control = {},
                                     const std::vector<std::string>& user_defined = {});

// SentencePiece: <unk> <s> </s> (ids 0 to 2), the 256 byte tokens (3 to 258), then `pieces`, best first, then `control` and
// `user_defined`.
GgufVocabulary sentencepiece_vocabulary(const std::vector<std::string>& pieces, const std::vector<std::string>& control = {},
                                        const std::vector<std::string>& user_defined = {});

// Texts of the ids' vocabulary entries, as in the file.
std::vector<std::string> token_texts(const Tokenizer& tokenizer, const std::vector<TokenId>& ids);

}  // namespace quire::testing
