// tokenizer.json: what is read, and that everything else is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/text/expect_error.h"
#include "tests/text/small_tokenizers.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using testing::token_texts;

const std::string kByteLevel = R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true, "trim_offsets": true})";

struct Parts {
  std::string added = R"([{"id": 5, "content": "<s>", "special": true}, {"id": 6, "content": "<t>", "special": false}])";
  std::string normalizer = "null";
  std::string pre_tokenizer = kByteLevel;
  std::string post_processor = "null";
  std::string decoder = kByteLevel;
  std::string model = R"({"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "\u0120": 4}, "merges": [["a", "b"]]})";

  std::string text() const {
    return R"({"version": "1.0", "truncation": null, "added_tokens": )" + added + R"(, "normalizer": )" + normalizer +
           R"(, "pre_tokenizer": )" + pre_tokenizer + R"(, "post_processor": )" + post_processor + R"(, "decoder": )" + decoder +
           R"(, "model": )" + model + "}";
  }
  Tokenizer load(const std::string& config = {}) const { return Tokenizer::from_json(text(), config); }
};

void expect_refusal(ErrorCode code, const std::string& part, const Parts& parts, const std::string& config = {}) {
  testing::expect_error(code, part, [&] { parts.load(config); });
}

TEST(TokenizerJson, EncodesAndDecodes) {
  const Tokenizer t = Parts{}.load();
  EXPECT_EQ(t.vocab_size(), 7);
  EXPECT_THAT(token_texts(t, t.encode("abc <t><s>", {.add_special = true, .parse_special = true})),
              ElementsAre("ab", "c", "\u0120", "<t>", "<s>"));
  EXPECT_EQ(t.decode(t.encode("abc ab")), "abc ab");
}

TEST(TokenizerJson, MergesInBothForms) {
  Parts parts;
  parts.model = R"({"vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "\u0120": 4}, "merges": ["a b"]})";
  const Tokenizer t = parts.load();
  EXPECT_THAT(token_texts(t, t.encode("ab")), ElementsAre("ab"));
}

TEST(TokenizerJson, TemplateAddsSpecialTokens) {
  Parts parts;
  parts.post_processor = R"({"type": "Sequence", "processors": [{"type": "ByteLevel"}, {"type": "TemplateProcessing", "single": [
      {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<s>", "type_id": 0}}],
      "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [5], "tokens": ["<s>"]}}}]})";
  const Tokenizer t = parts.load();
  EXPECT_THAT(token_texts(t, t.encode("a")), ElementsAre("<s>", "a", "<s>"));
  EXPECT_EQ(t.bos_id(), 5);
}

TEST(TokenizerJson, ConfigNamesSpecialTokensAndTemplate) {
  const Tokenizer t = Parts{}.load(R"({"bos_token": {"content": "<s>"}, "eos_token": "c", "chat_template": [
      {"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]})");
  EXPECT_EQ(t.bos_id(), 5);
  EXPECT_THAT(t.end_ids(), ElementsAre(2));
  EXPECT_EQ(t.chat_template_source(), "D");
}

TEST(TokenizerJson, HolesInTheIds) {
  Parts parts;
  parts.added = R"([{"id": 9, "content": "<s>", "special": true}])";
  const Tokenizer t = parts.load();
  EXPECT_EQ(t.vocab_size(), 10);
  EXPECT_EQ(t.token_bytes(7), "");
}

TEST(TokenizerJson, FewTokensCannotSpreadOverMillionsOfIds) {
  Parts parts;  // five in the vocabulary and one added: 1024 + 6 * 64 ids
  parts.added = R"([{"id": 1407, "content": "<s>", "special": true}])";
  EXPECT_EQ(parts.load().vocab_size(), 1408);
  parts.added = R"([{"id": 1408, "content": "<s>", "special": true}])";
  expect_refusal(ErrorCode::kInvalidFile, "added_tokens[0].id: 1408 is not in [0, 1407]", parts);
  parts.added = "[]";
  parts.model = R"({"vocab": {"a": 1088}, "merges": []})";
  expect_refusal(ErrorCode::kInvalidFile, "vocab[\"a\"]: 1088 is not in [0, 1087]", parts);
}

TEST(TokenizerJson, RefusesUnknownPartsByName) {
  const auto unsupported = ErrorCode::kUnsupported;
  const auto with = [](auto member, const std::string& value) {
    Parts parts;
    parts.*member = value;
    return parts;
  };
  expect_refusal(unsupported, "model.type: \"WordPiece\"",
                 with(&Parts::model, R"({"type": "WordPiece", "vocab": {}, "merges": []})"));
  expect_refusal(unsupported, "model.dropout", with(&Parts::model, R"({"dropout": 0.1, "vocab": {}, "merges": []})"));
  expect_refusal(unsupported, "model.end_of_word_suffix: \"</w>\"",
                 with(&Parts::model, R"({"end_of_word_suffix": "</w>", "vocab": {}, "merges": []})"));
  expect_refusal(unsupported, "normalizer \"NFKC\"", with(&Parts::normalizer, R"({"type": "NFKC"})"));
  expect_refusal(unsupported, "normalizer.normalizers[1]: normalizer \"Lowercase\"",
                 with(&Parts::normalizer, R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]})"));
  expect_refusal(unsupported, "pre-tokenizer \"Whitespace\"", with(&Parts::pre_tokenizer, R"({"type": "Whitespace"})"));
  expect_refusal(
      unsupported, "after ByteLevel",
      with(&Parts::pre_tokenizer, R"({"type": "Sequence", "pretokenizers": [)" + kByteLevel + "," + kByteLevel + "]}"));
  expect_refusal(unsupported, "pattern: pattern \"(\"",
                 with(&Parts::pre_tokenizer, R"({"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"})"));
  expect_refusal(unsupported, "behavior: \"Sideways\"",
                 with(&Parts::pre_tokenizer, R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Sideways"})"));
  expect_refusal(ErrorCode::kInvalidFile, "String: is empty",
                 with(&Parts::pre_tokenizer, R"({"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated"})"));
  expect_refusal(unsupported, "decoder \"WordPiece\"", with(&Parts::decoder, R"({"type": "WordPiece"})"));
  expect_refusal(unsupported, "\"decoder\" is missing", with(&Parts::decoder, "null"));
  expect_refusal(unsupported, "only one of pre_tokenizer and decoder", with(&Parts::pre_tokenizer, "null"));
  expect_refusal(unsupported, "post-processor \"BertProcessing\"", with(&Parts::post_processor, R"({"type": "BertProcessing"})"));
}

TEST(TokenizerJson, RefusesBrokenParts) {
  const auto invalid = ErrorCode::kInvalidFile;
  const auto model = [](const std::string& value) {
    Parts parts;
    parts.model = value;
    return parts;
  };
  expect_refusal(invalid, "vocab[\"a\"]: -1", model(R"({"vocab": {"a": -1}, "merges": []})"));
  expect_refusal(invalid, "vocab[\"a\"]: 99999999", model(R"({"vocab": {"a": 99999999}, "merges": []})"));
  expect_refusal(invalid, "vocab[\"a\"]: expected an integer", model(R"({"vocab": {"a": 0.5}, "merges": []})"));
  expect_refusal(invalid, "both have the id 0", model(R"({"vocab": {"a": 0, "b": 0}, "merges": []})"));
  expect_refusal(invalid, "\"a\" occurs twice", model(R"({"vocab": {"a": 0, "a": 1}, "merges": []})"));
  expect_refusal(invalid, "merges[0]: \"b\" is not in", model(R"({"vocab": {"a": 0, "ab": 1}, "merges": [["a", "b"]]})"));
  expect_refusal(invalid, "merges[0]: \"ab\" is not in", model(R"({"vocab": {"a": 0, "b": 1}, "merges": [["a", "b"]]})"));
  expect_refusal(invalid, "merges[0]: \"ab\" is not two", model(R"({"vocab": {"a": 0, "b": 1}, "merges": ["ab"]})"));
  expect_refusal(invalid, "merges[1]: \"a\" and \"a\" were merged",
                 model(R"({"vocab": {"a": 0, "aa": 1}, "merges": ["a a", "a a"]})"));
  expect_refusal(invalid, "unk_token: \"u\"", model(R"({"unk_token": "u", "vocab": {"a": 0}, "merges": []})"));
  expect_refusal(invalid, "\"vocab\" is missing", model(R"({"merges": []})"));
  Parts parts;
  parts.added = R"([{"id": 0, "content": "z"}])";
  expect_refusal(invalid, "added_tokens[0]: id 0 is \"z\", but the vocabulary has \"a\"", parts);
  parts.added = R"([{"id": 9, "content": "a"}])";
  expect_refusal(invalid, "both \"a\"", parts);
  parts.added = R"([{"id": 9, "content": ""}])";
  expect_refusal(invalid, "\"content\" is empty", parts);
  expect_refusal(invalid, "tokenizer_config.json.bos_token: \"q\"", Parts{}, R"({"bos_token": "q"})");
  expect_refusal(invalid, "not valid JSON", model("{"));
  expect_refusal(invalid, "not valid JSON", model(std::string(100, '[') + std::string(100, ']')));
}

TEST(TokenizerJson, EveryPrefixIsRefused) {
  const std::string text = Parts{}.text();
  for (std::size_t n = 0; n < text.size(); ++n) EXPECT_THROW(Tokenizer::from_json(text.substr(0, n)), Error) << n;
}

}  // namespace
}  // namespace quire
