// Any number of threads may use one Tokenizer, and make their own: each gets what it gets alone. For ThreadSanitizer, mostly.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "quire/tokenizer.h"
#include "tests/text/small_tokenizers.h"

namespace quire {
namespace {

struct Answer {
  std::vector<TokenId> ids;
  std::string text;

  bool operator==(const Answer&) const = default;
};

Answer ask(const Tokenizer& tokenizer) {
  Answer answer;
  answer.ids = tokenizer.encode("abc <t>abab  c\u00e9 ab", {.add_special = true, .parse_special = true});
  TextStream stream(tokenizer, {"abab"}, {.at_text_start = true});
  for (const TokenId id : answer.ids) answer.text += stream.push(id);
  answer.text += stream.finish() + tokenizer.decode(answer.ids);
  return answer;
}

template <typename Make>
void expect_the_same_on_threads(const Make& make) {
  const Tokenizer shared = make();
  const Answer alone = ask(shared);
  ASSERT_GT(alone.ids.size(), 5u);
  std::vector<Answer> answers(8);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < answers.size(); ++i)
    threads.emplace_back([&, i] { answers[i] = ask(i % 4 == 3 ? make() : shared); });
  for (std::thread& thread : threads) thread.join();
  for (const Answer& answer : answers) EXPECT_EQ(answer, alone);
}

// The pattern is one that only the engine of regular expressions knows.
TEST(TokenizerThreads, APatternIsShared) {
  expect_the_same_on_threads([] {
    return Tokenizer::from_json(R"({"version": "1.0", "truncation": null, "normalizer": {"type": "NFC"}, "post_processor": null,
      "added_tokens": [{"id": 5, "content": "<s>", "special": true}, {"id": 6, "content": "<t>", "special": false}],
      "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "[a-b]{1,3}|c+|\\s"}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false, "trim_offsets": true}]},
      "decoder": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true, "trim_offsets": true},
      "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "\u0120": 4}, "merges": [["a", "b"]]}})");
  });
}

TEST(TokenizerThreads, AVocabularyIsShared) {
  expect_the_same_on_threads([] {
    return make_tokenizer(testing::sentencepiece_vocabulary({"a", "b", "c", "ab", "\u2581"}, {"<t>"}));
  });
}

}  // namespace
}  // namespace quire
