// Tiny random models, written as real checkpoints in both formats from the same numbers, for the real loaders to read. The
// numbers are a function of the spec alone: of its seed and each tensor's name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace quire::test {

struct TinyModelSpec {
  std::string family = "llama";  // llama, qwen2, qwen3, gemma3
  int num_layers = 2;
  int hidden_size = 64;  // a multiple of 32; of 256 for K-quants to be used (otherwise Q8_0 takes their place)
  int num_heads = 4;
  int num_kv_heads = 2;
  int head_size = 16;
  int mlp_size = 96;     // multiples as for hidden_size
  int vocab_size = 320;  // at least 259 with a tokenizer
  int max_context = 256;
  int window = 0;                   // of the sliding layers: in Gemma the pattern's, in llama all (Mistral); 0: none
  DType weight_type = DType::kF32;  // of matrices
  bool tied = true;
  bool mistral = false;      // config.json says mistral
  std::string rope_scaling;  // "", "linear", "llama3", "yarn"; factor 4, original context 64
  bool with_tokenizer = true;
  std::uint64_t seed = 1;
};

// A model of each family with what is particular to it: llama GQA in odd groups (9 heads on 3), qwen2 biases, qwen3 a head size
// that is not hidden / heads, gemma3 seven layers with windows of 4. Weight types differ too.
TinyModelSpec tiny_model_spec(const std::string& family);
// Of every model of tiny_model_spec.
int tiny_vocab_size();
// KV groups of tiny_model_spec("gemma3").
int tiny_gemma_groups();

// A tensor by its Hugging Face name without "model.", in that format's conventions: no permutation, Gemma's norms less one.
struct FloatTensor {
  std::string name;
  std::string gguf_name;
  std::int64_t rows = 0;
  std::int64_t columns = 0;   // 0: a vector
  std::vector<float> values;  // what the files hold, quantisation included
};
std::vector<FloatTensor> tiny_weights(const TinyModelSpec& spec);

void write_gguf(const TinyModelSpec& spec, const std::filesystem::path& path);
// Parts as a splitter makes them: `stem`-00001-of-0000N.gguf, the metadata in the first. Returns their paths.
std::vector<std::filesystem::path> write_split_gguf(const TinyModelSpec& spec, const std::filesystem::path& stem, int num_parts);

struct SafetensorsOptions {
  int num_shards = 1;             // more than one: an index beside them
  std::string prefix = "model.";  // "language_model.model.", "model.language_model.": config.json wraps a text_config
  bool rope_parameters = false;   // the newer spelling of RoPE in config.json
  bool aligned = true;            // tensor data at multiples of 8
};
// model*.safetensors, config.json, generation_config.json, tokenizer.json, tokenizer_config.json. Quantised types are written as
// F32 with the values of the blocks.
void write_safetensors(const TinyModelSpec& spec, const std::filesystem::path& directory, const SafetensorsOptions& options = {});

}  // namespace quire::test
