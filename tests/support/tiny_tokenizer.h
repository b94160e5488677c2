// A tokenizer for made-up models: byte-level BPE of GPT-2's kind with ChatML. Ids: 0 <|endoftext|>, 1 <|im_start|>, 2 <|im_end|>
// (the end of text), 3 to 258 the bytes 0 to 255, then the results of the merges, then reserved tokens.
#pragma once

#include <string>
#include <vector>

#include "tests/support/file_writers.h"

namespace quire::test {

struct TinyTokenizer {
  static constexpr int kEndOfText = 0, kStart = 1, kEnd = 2, kFirstByte = 3;

  std::vector<std::string> tokens;  // bytes in GPT-2's printable spelling
  std::vector<int> types;           // GGUF: 1 normal, 3 control, 5 unused
  std::vector<std::string> merges;  // "a b"

  // REQUIRES: 259 <= vocab_size
  static TinyTokenizer make(int vocab_size);
  static std::string chat_template();

  void add_to(GgufWriter& writer) const;  // tokenizer.ggml.*
  std::string tokenizer_json() const;
  std::string tokenizer_config_json() const;
};

}  // namespace quire::test
