// ModelConfig: what a decoder-only transformer is, checked, from GGUF metadata or from config.json. Families differ here and in
// the set of tensors present; the order of operations is one (src/model/decoder.cc).
#pragma once

#include <cstdint>
#include <string>
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
  float embedding_scale = 1.0f;  // Gemma: sqrt(H), rounded to bf16
  float attention_scale = 0.0f;  // usually D^-0.5
  float attention_softcap = 0.0f;
  float final_softcap = 0.0f;
  Activation activation = Activation::kSilu;
  bool tied_embeddings = false;
  RopeConfig rope_full;                     // layers that see everything
  RopeConfig rope_sliding;                  // layers with a window; inv_freq empty: none
  std::vector<int> layer_windows;           // [L] positions seen by the layer; 0: all
  std::vector<std::int32_t> end_token_ids;  // from config.json and generation_config.json; GGUF: empty, the tokenizer has them

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

}  // namespace quire
