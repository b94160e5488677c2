#include "benchmarks/serving/prompt_maker.h"

#include <fmt/format.h>
#include <quire/error.h>

#include <algorithm>
#include <numeric>

#include "benchmarks/serving/seeded_random.h"

namespace quire::bench {
namespace {

constexpr int kFirstPlainId = 256;
constexpr std::size_t kFewestWords = 4;

// A space and letters that encode to this one token.
bool is_word(const Tokenizer& tokenizer, TokenId id, const std::string& bytes) {
  if (bytes.size() < 2 || bytes[0] != ' ') return false;
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  return std::all_of(bytes.begin() + 1, bytes.end(), is_letter) &&
         tokenizer.encode(bytes, {.add_special = false}) == std::vector<TokenId>{id};
}

}  // namespace

PromptMaker::PromptMaker(int vocab_size, std::uint64_t seed) : seed_(seed) {
  if (vocab_size <= kFirstPlainId)
    throw Error(ErrorCode::kInvalidArgument, fmt::format("vocabulary size is {}: it must be over {}", vocab_size, kFirstPlainId));
  ids_.resize(static_cast<std::size_t>(vocab_size - kFirstPlainId));
  std::iota(ids_.begin(), ids_.end(), kFirstPlainId);
}

PromptMaker::PromptMaker(const Tokenizer& tokenizer, std::uint64_t seed, bool for_text) : seed_(seed) {
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.is_special(id)) continue;
    if (for_text) {
      std::string bytes = tokenizer.token_bytes(id);
      if (!is_word(tokenizer, id, bytes)) continue;
      words_.push_back(std::move(bytes));
    }
    ids_.push_back(id);
  }
  if (ids_.size() < kFewestWords)
    throw Error(ErrorCode::kUnsupported, "the tokenizer has too few words to make a text of a given number of tokens");
}

std::vector<TokenId> PromptMaker::tokens(const PlannedRequest& request) const {
  std::vector<TokenId> tokens;
  tokens.reserve(static_cast<std::size_t>(request.input_tokens));
  for (const PromptSegment& segment : request.prompt) {
    SeededRandom random(seed_, segment.key);
    for (int i = 0; i < segment.length; ++i) tokens.push_back(ids_[random.below(ids_.size())]);
  }
  return tokens;
}

std::string PromptMaker::text(const PlannedRequest& request) const {
  std::string text;
  for (const PromptSegment& segment : request.prompt) {
    SeededRandom random(seed_, segment.key);
    for (int i = 0; i < segment.length; ++i) text += words_[random.below(words_.size())];
  }
  return text;
}

}  // namespace quire::bench
