// Text to token ids and back: Tokenizer, TextStream (streaming detokeniser with stop strings), ChatTemplate.
// A Tokenizer is immutable and cheap to copy; any number of threads may use it at once.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/request.h"

namespace quire {

struct EncodeOptions {
  bool add_special = true;     // put BOS (and EOS) where the model's own configuration wants them
  bool parse_special = false;  // text such as "<|im_end|>" becomes the control token. Keep it off for text from users
};

struct DecodeOptions {
  bool skip_special = true;  // control tokens yield no text
};

class Tokenizer {
 public:
  class Impl;
  explicit Tokenizer(std::shared_ptr<const Impl> impl);

  // From the text of Hugging Face's tokenizer.json and (may be empty) tokenizer_config.json. Throws Error(kInvalidFile or
  // kUnsupported) naming the element.
  static Tokenizer from_json(std::string_view tokenizer_json, std::string_view tokenizer_config_json = {});

  // Ids of `text`. Bytes that are not UTF-8 are replaced by U+FFFD first, as many as the Unicode standard recommends (one per
  // maximal subpart). Throws Error(kInvalidArgument) only for text over 2^30 bytes.
  std::vector<TokenId> encode(std::string_view text, EncodeOptions options = {}) const;

  // Text of `ids`; bytes that are no UTF-8 become U+FFFD. Throws Error(kInvalidArgument) for an id out of the vocabulary.
  std::string decode(std::span<const TokenId> ids, DecodeOptions options = {}) const;

  // The bytes that `id` contributes in the middle of a text; empty for control tokens. REQUIRES: 0 <= id < vocab_size().
  std::string token_bytes(TokenId id) const;
  // The id whose vocabulary entry (with its escapes, "Ġthe") or added token is exactly `token`; -1 if none.
  TokenId token_id(std::string_view token) const;

  int vocab_size() const;
  TokenId bos_id() const;                         // -1: none
  std::span<const TokenId> end_ids() const;       // every token that ends a generation (eos, eot, eom), ascending
  bool is_special(TokenId id) const;              // control token
  std::string_view chat_template_source() const;  // the model's own template; empty: none

  const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<const Impl> impl_;
};

struct TextStreamOptions {
  bool at_text_start = false;  // no prompt before: models that drop a text's leading space do it here alone
  int min_tokens = 0;          // stop strings are looked for in the text of later tokens only
};

// Turns one generation's tokens into text, piece by piece: text leaves only when it is complete UTF-8 and cannot become part of
// a stop string. Not thread-safe. The concatenation of all pieces equals the whole text cut before the first stop string.
class TextStream {
 public:
  // A stop string counts when it is completed: the first to be complete ends the text, the longest if several are complete at
  // the same character. Throws Error(kInvalidArgument) for one that is empty or not UTF-8.
  explicit TextStream(Tokenizer tokenizer, std::vector<std::string> stop = {}, TextStreamOptions options = {});
  ~TextStream();
  TextStream(TextStream&&) noexcept;
  TextStream& operator=(TextStream&&) noexcept;

  // Another stream of the same arguments, at its start. The two share what was made of the stop strings.
  TextStream another() const;

  // Adds a token and returns the text that may leave. After stopped() it returns nothing.
  std::string push(TokenId id);
  // The end: returns what was held back, an incomplete character as U+FFFD.
  std::string finish();
  // A stop string has been completed; nothing of it was returned.
  bool stopped() const;

 private:
  struct State;
  explicit TextStream(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct ChatMessage {
  std::string role = {};     // "system", "user" or "assistant"
  std::string content = {};  // text; never parsed for control tokens
};

// A model family's dialogue format: ChatML, Llama 3, Gemma, Mistral (v1, v3, v7), Qwen. Chosen by the model's own template; a
// template of no known family throws Error(kUnsupported), it is never guessed.
class ChatTemplate {
 public:
  struct Format;
  explicit ChatTemplate(Tokenizer tokenizer);

  std::string_view family() const;  // "chatml", "llama3", "gemma", ...
  // The dialogue's tokens, BOS included where the family has one, ending with the opening of an assistant turn if
  // `add_generation_prompt`. Throws Error(kInvalidArgument) for an unknown role or an order the family cannot express.
  std::vector<TokenId> encode(std::span<const ChatMessage> messages, bool add_generation_prompt = true) const;
  // The same as text, for showing.
  std::string render(std::span<const ChatMessage> messages, bool add_generation_prompt = true) const;

 private:
  Tokenizer tokenizer_;
  std::shared_ptr<const Format> format_;
};

// The tokenizer of a GGUF file, or of a directory with tokenizer.json. Loads no weights.
Tokenizer load_tokenizer(const std::string& path);

}  // namespace quire
