// What the two formats say about a tiny model besides its weights: GGUF metadata and config.json. Part of tiny_model.cc.
#pragma once

#include <string>
#include <vector>

#include "tests/support/file_writers.h"
#include "tests/support/tiny_model.h"

namespace quire::test {

inline constexpr double kTinyRopeFactor = 4.0;
inline constexpr int kTinyOriginalContext = 64;

void add_gguf_config(const TinyModelSpec& spec, GgufWriter& writer);
std::string tiny_config_json(const TinyModelSpec& spec, const SafetensorsOptions& options);
// GGUF has Llama 3's scaling as divisors [head_size / 2] of the frequencies; empty for other scalings.
std::vector<float> tiny_rope_divisors(const TinyModelSpec& spec);

}  // namespace quire::test
