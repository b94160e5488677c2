// ModelConfig: what a decoder-only transformer is, checked, from GGUF metadata or from config.json. Families differ here and in
// the set of tensors present; the order of operations is one (src/model/decoder.cc).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/ops.h"

namespace quire {

// Rotary embedding of one kind of layer, scaling already worked in.
struct RopeConfig {
  std::vector<float> inv_freq;  // [rotary_dims / 2]
  float magnitude = 1.0f;       // multiplies cos and sin (yarn's attention factor)
  RopeKind kind = RopeKind::kHalfSplit;
  bool operator==(const RopeConfig&) const = default;
};

struct ModelConfig {
  std::string family;    // "llama", "qwen2", "qwen3", "gemma3"
  int num_layers = 0;    // L
  int hidden_size = 0;   // H
  int mlp_size = 0;      // F
  int num_heads = 0;     // Hq
  int num_kv_heads = 0;  // Hkv, divides Hq
  int head_size = 0;     // D, even
  int vocab_size = 0;    // V, rows of the embedding
  int max_context = 0;   // tokens
  float rms_eps = 1e-6f;
  // Gemma: sqrt(H). Exact in float for GGUF, as its other readers have it; Hugging Face rounds it to the type of the embedding,
  // so load_model does too for safetensors (bf16 and H = 1152: 33.94 becomes 34).
  float embedding_scale = 1.0f;
  float attention_scale = 0.0f;  // usually D^-0.5
  float attention_softcap = 0.0f;
  float final_softcap = 0.0f;
  Activation activation = Activation::kSilu;
  bool tied_embeddings = false;             // the head is the embedding
  bool attention_bias = false;              // Q, K and V have a bias
  bool output_bias = false;                 // O has a bias
  bool mlp_bias = false;                    // gate, up and down have a bias
  RopeConfig rope_full;                     // layers that see everything
  RopeConfig rope_sliding;                  // layers with a window; inv_freq empty: none
  std::vector<int> layer_windows;           // [L] positions seen by the layer; 0: all
  std::vector<std::int32_t> end_token_ids;  // from config.json and generation_config.json; GGUF: empty, the tokenizer has them

  bool operator==(const ModelConfig&) const = default;
  bool is_gemma() const { return family == "gemma3"; }  // norms after attention and MLP too
  bool has_qk_norm() const { return is_gemma() || family == "qwen3"; }
  bool has_sliding_layers() const {
    return std::any_of(layer_windows.begin(), layer_windows.end(), [](int window) { return window > 0; });
  }
  bool layer_is_sliding(int layer) const { return layer_windows[static_cast<std::size_t>(layer)] > 0; }
};

// KV groups: the layers that keep the same positions, cut into pieces of equal size so that every group has the same bytes per
// block and one allocator serves all. A model without sliding layers is one group of L layers.
struct KvGroupLayout {
  int window = 0;           // positions kept; 0: all
  std::vector<int> layers;  // model layers, ascending; padded groups repeat none: sizes are equal by construction
};
// Groups of gcd(number of full layers, number of sliding layers) layers each, full groups first.
// (3 full and 15 sliding layers: one full group of 3, five sliding groups of 3.)
std::vector<KvGroupLayout> kv_group_layouts(const ModelConfig& config);

class GgufFile;
// The model that the metadata (and the presence and shape of a few tensors) describes. Throws Error: kUnsupported for an
// architecture or variant outside what quire computes, kInvalidFile for values that contradict each other.
ModelConfig model_config_from_gguf(const GgufFile& file);
// The same from the texts of config.json and generation_config.json (empty: none). `file` stands in messages.
ModelConfig model_config_from_json(std::string_view config_json, std::string_view generation_config_json,
                                   const std::string& file);
// Both functions above use these. They throw Error(kInvalidFile) unless every size (before tables are made from them), and then
// every field, is within what quire computes with.
void check_model_sizes(const ModelConfig& config, const std::string& file);
void check_model_config(const ModelConfig& config, const std::string& file);

}  // namespace quire
