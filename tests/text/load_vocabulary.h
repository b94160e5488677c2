// Loads tokenizers for tests: a tokenizer.json (with its tokenizer_config.json, if one lies beside it) or a dump of a GGUF
// file's tokenizer metadata (gguf_vocabulary_json.py).
#pragma once

#include <string>

#include "quire/tokenizer.h"
#include "text/gguf_vocabulary.h"

namespace quire::testing {

std::string read_file(const std::string& path);
GgufVocabulary parse_gguf_vocabulary(const std::string& json);

// A dump is told from a tokenizer.json by its content.
Tokenizer load_test_tokenizer(const std::string& path);

}  // namespace quire::testing
