// PromptMaker: the tokens, or the text, of a planned prompt. Random words of a vocabulary: what a dense model computes takes the
// same time for any text. Equal segments give equal tokens, so that what a workload shares is shared.
#pragma once

#include <quire/tokenizer.h>

#include <cstdint>
#include <string>
#include <vector>

#include "benchmarks/serving/workload.h"

namespace quire::bench {

class PromptMaker {
 public:
  // Ids from 256 on, where vocabularies have neither bytes nor control tokens. Throws Error(kInvalidArgument) if `vocab_size` is
  // not over 256.
  PromptMaker(int vocab_size, std::uint64_t seed);
  // Ids of `tokenizer` that are no control tokens. If `for_text`, words alone: each begins with a space and is one token by
  // itself, so that a text of n words has n tokens. Throws Error(kUnsupported) if there are fewer than 4 of them.
  PromptMaker(const Tokenizer& tokenizer, std::uint64_t seed, bool for_text);

  std::vector<TokenId> tokens(const PlannedRequest& request) const;
  // REQUIRES: made for text
  std::string text(const PlannedRequest& request) const;

 private:
  std::uint64_t seed_;
  std::vector<TokenId> ids_;
  std::vector<std::string> words_;  // [ids_.size()] if made for text
};

}  // namespace quire::bench
