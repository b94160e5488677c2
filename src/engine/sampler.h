// ChoiceSampler: what one choice of a request is sampled with, step by step: SamplingParams worked into the arrays of a
// SampleRow, and the counts that penalties need. The drawing itself is the backend's `sample` op. A function of the choice alone:
// nothing here knows who else is in the batch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/ops.h"
#include "quire/request.h"

namespace quire {

// Checks every field of `params` against its documented range and the vocabulary. Throws Error(kInvalidArgument) naming it.
void validate_sampling(const SamplingParams& params, int vocab_size);

// Choices generated, of which `n` are returned.
inline int num_choices(const SamplingParams& params) { return std::max(params.n, params.best_of); }

class ChoiceSampler {
 public:
  // `end_ids`: tokens that end a generation, empty with ignore_eos. `num_allowed`: ids below it can be sampled. `params` must
  // outlive the sampler.
  ChoiceSampler(const SamplingParams& params, std::span<const TokenId> prompt, std::span<const TokenId> end_ids,
                std::uint64_t seed, int choice, int num_allowed);

  // The row for the next token. Pointers in it are valid until the next call of any member. Asks SamplingParams::token_mask,
  // whose exception passes through.
  SampleRow next_row();

  // The token has been sampled and accepted.
  void accept(TokenId token);

  std::span<const TokenId> generated() const { return generated_; }

 private:
  void count(TokenId token, int in_output);

  const SamplingParams& params_;
  std::uint64_t seed_;
  int choice_;
  int num_allowed_;
  bool penalised_;                           // a penalty is on, so tokens are counted
  std::vector<TokenBias> biases_;            // logit_bias, distinct tokens
  std::vector<TokenBias> biases_with_ends_;  // the same, and every token that ends the choice forbidden: before min_tokens
  std::vector<TokenCount> counts_;           // of prompt and output, if penalised_
  std::unordered_map<TokenId, std::size_t> count_of_;  // token to its place in counts_
  std::vector<std::uint32_t> mask_;
  std::vector<TokenId> generated_;
};

}  // namespace quire
