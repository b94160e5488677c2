// Peer bug B-017: features that each work alone and break together. Six sets of features in which every pair of values of any two
// occurs, and a load that uses them all: 64 requests at once whose prompts share their beginnings.
#pragma once

#include <string>
#include <vector>

#include "quire/engine.h"

namespace quire::test {

struct Features {
  bool prefix_cache;
  KvType kv_type;
  bool chunks;   // of prompts
  bool windows;  // gemma3, else llama
  int choices;   // n

  std::string describe() const {
    return std::string(windows ? "gemma3" : "llama") + (prefix_cache ? ", prefix cache" : "") +
           (kv_type == KvType::kF16 ? ", F16" : ", BF16") + (chunks ? ", chunks" : "") + ", n = " + std::to_string(choices);
  }
};

// A covering array of strength two: feature_pairs_are_all_there() says so.
inline constexpr Features kFeaturePairs[] = {
    {false, KvType::kF16, false, false, 1}, {false, KvType::kBF16, true, true, 2}, {true, KvType::kF16, true, true, 1},
    {true, KvType::kBF16, false, true, 2},  {true, KvType::kBF16, true, false, 1}, {true, KvType::kF16, false, false, 2},
};

constexpr bool feature_pairs_are_all_there() {
  unsigned met[5][5] = {};
  for (const Features& f : kFeaturePairs) {
    const bool values[] = {f.prefix_cache, f.kv_type == KvType::kF16, f.chunks, f.windows, f.choices > 1};
    for (int a = 0; a < 5; ++a) {
      for (int b = 0; b < 5; ++b) met[a][b] |= 1u << (2 * values[a] + values[b]);
    }
  }
  for (int a = 0; a < 5; ++a) {
    for (int b = 0; b < 5; ++b) {
      if (a != b && met[a][b] != 0b1111u) return false;
    }
  }
  return true;
}
static_assert(feature_pairs_are_all_there());

// `distinct` requests, again and again up to 64: prompts of 9 to 12 tokens, by fours with the same first 8.
inline std::vector<Request> crowd(const Features& features, std::size_t distinct = 64) {
  std::vector<Request> requests(64);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const int kind = static_cast<int>(i % distinct);
    Request& request = requests[i];
    for (int t = 0; t < 8; ++t) request.prompt.push_back((kind / 4 * 101 + t * 37 + t * t) % 300);
    for (int t = 0; t < 1 + kind % 4; ++t) request.prompt.push_back((kind * 53 + t * 19) % 300);
    request.sampling.temperature = features.choices > 1 ? 0.8f : 0.0f;
    request.sampling.seed = kind;
    request.sampling.max_tokens = 1 + kind % 3;
    request.sampling.ignore_eos = true;
    request.sampling.logprobs = 0;
    request.sampling.n = features.choices;
  }
  return requests;
}

// What changes no answer: options of the features on top of `plain`.
inline EngineOptions with(const Features& features, EngineOptions plain) {
  plain.prefix_cache = features.prefix_cache;
  plain.kv_type = features.kv_type;
  plain.block_size = 8;
  plain.max_batched_tokens = features.chunks ? 13 : 512;
  return plain;
}

}  // namespace quire::test
