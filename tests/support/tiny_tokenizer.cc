#include "tests/support/tiny_tokenizer.h"

#include <boost/json.hpp>

#include <array>

#include "core/check.h"

namespace quire::test {
namespace {

namespace json = boost::json;

constexpr std::array kMerges = {"t h",  "h e",       "i n",    "e r",      "a n",      "o n",        "r e",      "th e",
                                "in g", "l l",       "o u",    "\u0120 t", "\u0120 a", "\u0120 the", "\u0120 s", "\u0120 w",
                                "an d", "\u0120a n", "e s",    "e n",      "i s",      "\u0120 i",   "o r",      "a t",
                                "l o",  "he ll",     "hell o", "1 2",      "12 3",     "a a",        "aa aa"};

std::string utf8(int code_point) {
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  return {static_cast<char>(0xC0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 63))};
}

// GPT-2 writes bytes that do not print as code points from 256 on, in order.
std::vector<std::string> byte_tokens() {
  std::vector<std::string> tokens;
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    tokens.push_back(utf8(prints ? byte : next++));
  }
  return tokens;
}

}  // namespace

TinyTokenizer TinyTokenizer::make(int vocab_size) {
  QUIRE_CHECK_MSG(vocab_size >= 259, "vocabulary of {}", vocab_size);
  const auto size = static_cast<std::size_t>(vocab_size);
  TinyTokenizer t;
  t.tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  t.types = {3, 3, 3};
  for (std::string& token : byte_tokens()) t.tokens.push_back(std::move(token));
  for (const std::string merge : kMerges) {
    if (t.tokens.size() == size) break;
    const std::size_t space = merge.find(' ');
    t.merges.push_back(merge);
    t.tokens.push_back(merge.substr(0, space) + merge.substr(space + 1));
  }
  t.types.resize(t.tokens.size(), 1);
  for (int i = 0; t.tokens.size() < size; ++i) t.tokens.push_back("<|reserved_" + std::to_string(i) + "|>");
  t.types.resize(size, 5);
  return t;
}

std::string TinyTokenizer::chat_template() {
  return "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
         "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
}

void TinyTokenizer::add_to(GgufWriter& writer) const {
  writer.add("tokenizer.ggml.model", "gpt2");
  writer.add("tokenizer.ggml.pre", "gpt-2");
  writer.add_array("tokenizer.ggml.tokens", tokens);
  writer.add_array("tokenizer.ggml.token_type", types);
  writer.add_array("tokenizer.ggml.merges", merges);
  writer.add("tokenizer.ggml.bos_token_id", std::uint32_t{kEndOfText});
  writer.add("tokenizer.ggml.eos_token_id", std::uint32_t{kEnd});
  writer.add("tokenizer.ggml.add_bos_token", false);
  writer.add("tokenizer.chat_template", chat_template());
}

std::string TinyTokenizer::tokenizer_json() const {
  json::object vocab;
  json::array added, merge_list;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (types[i] == 1) {
      vocab[tokens[i]] = i;
      continue;
    }
    added.push_back({{"id", i},
                     {"content", tokens[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  for (const std::string& merge : merges) merge_list.push_back(json::string(merge));
  const json::value byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const json::object root = {{"version", "1.0"},
                             {"truncation", nullptr},
                             {"padding", nullptr},
                             {"added_tokens", added},
                             {"normalizer", nullptr},
                             {"pre_tokenizer", byte_level},
                             {"post_processor", nullptr},
                             {"decoder", byte_level},
                             {"model",
                              {{"type", "BPE"},
                               {"dropout", nullptr},
                               {"unk_token", nullptr},
                               {"continuing_subword_prefix", nullptr},
                               {"end_of_word_suffix", nullptr},
                               {"fuse_unk", false},
                               {"byte_fallback", false},
                               {"ignore_merges", false},
                               {"vocab", vocab},
                               {"merges", merge_list}}}};
  return json::serialize(root);
}

std::string TinyTokenizer::tokenizer_config_json() const {
  return json::serialize(json::object{{"tokenizer_class", "GPT2Tokenizer"},
                                      {"bos_token", tokens[kEndOfText]},
                                      {"eos_token", tokens[kEnd]},
                                      {"add_bos_token", false},
                                      {"chat_template", chat_template()}});
}

}  // namespace quire::test
