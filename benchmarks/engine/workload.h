// Workload: requests that lie ready, from a file or made at random, and what an engine needed for them. All are submitted before
// the first step; the engine's max_running bounds how many share the steps. Answers are greedy, of exactly the length asked for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quire/engine.h"

namespace quire::bench {

struct Item {
  std::vector<TokenId> prompt;
  int output_tokens = 0;
};
using Workload = std::vector<Item>;

struct RandomPrompts {
  int count = 0;
  int prompt_tokens = 0;
  int output_tokens = 0;
  int shared_prefix = 0;  // tokens that all begin with; part of prompt_tokens
  std::uint64_t seed = 1;
};
// Ids uniform over the vocabulary: the time of a dense model does not depend on them. The same seed, the same prompts.
Workload random_workload(const RandomPrompts& prompts, int vocab_size);

// A line is {"prompt": text} or {"prompt_ids": [ids]} (which counts if both are there), with "output_tokens" if not the default.
// Throws std::runtime_error naming file and line: of what is malformed, and of what `engine` could not answer.
Workload read_workload(const std::string& path, const Engine& engine, int default_output_tokens);

struct Outcome {
  double seconds = 0;  // from the first submit to the return of the last step
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t preemptions = 0;
  // After the step in which the last request got its first token.
  double seconds_after_all_began = 0;
  std::int64_t tokens_after_all_began = 0;
};
// Throws what the engine throws, and std::runtime_error for an answer that failed or has another length.
Outcome run(Engine& engine, const Workload& workload);

}  // namespace quire::bench
