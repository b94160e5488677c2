#include "model/tensor_names.h"

#include "core/check.h"

namespace quire {
namespace {

enum class Size { kOne, kHidden, kQueries, kKeys, kHead, kMlp };  // kOne as columns: a vector

bool always(const ModelConfig&) { return true; }
bool with_qk_norm(const ModelConfig& c) { return c.has_qk_norm(); }
bool with_attention_bias(const ModelConfig& c) { return c.attention_bias; }
bool with_output_bias(const ModelConfig& c) { return c.output_bias; }
bool with_mlp_bias(const ModelConfig& c) { return c.mlp_bias; }
bool in_gemma(const ModelConfig& c) { return c.is_gemma(); }
bool outside_gemma(const ModelConfig& c) { return !c.is_gemma(); }

struct LayerTensor {
  TensorView LayerWeights::*place;
  const char* gguf;          // after "blk.N."
  const char* hugging_face;  // after "layers.N."
  Size rows, columns;
  bool is_norm;
  bool (*present)(const ModelConfig&);
};

using L = LayerWeights;
constexpr LayerTensor kLayerTensors[] = {
    {&L::attention_norm, "attn_norm.weight", "input_layernorm.weight", Size::kHidden, Size::kOne, true, always},
    {&L::q, "attn_q.weight", "self_attn.q_proj.weight", Size::kQueries, Size::kHidden, false, always},
    {&L::k, "attn_k.weight", "self_attn.k_proj.weight", Size::kKeys, Size::kHidden, false, always},
    {&L::v, "attn_v.weight", "self_attn.v_proj.weight", Size::kKeys, Size::kHidden, false, always},
    {&L::q_bias, "attn_q.bias", "self_attn.q_proj.bias", Size::kQueries, Size::kOne, false, with_attention_bias},
    {&L::k_bias, "attn_k.bias", "self_attn.k_proj.bias", Size::kKeys, Size::kOne, false, with_attention_bias},
    {&L::v_bias, "attn_v.bias", "self_attn.v_proj.bias", Size::kKeys, Size::kOne, false, with_attention_bias},
    {&L::q_norm, "attn_q_norm.weight", "self_attn.q_norm.weight", Size::kHead, Size::kOne, true, with_qk_norm},
    {&L::k_norm, "attn_k_norm.weight", "self_attn.k_norm.weight", Size::kHead, Size::kOne, true, with_qk_norm},
    {&L::o, "attn_output.weight", "self_attn.o_proj.weight", Size::kHidden, Size::kQueries, false, always},
    {&L::o_bias, "attn_output.bias", "self_attn.o_proj.bias", Size::kHidden, Size::kOne, false, with_output_bias},
    // Trap: post_attention_layernorm is the norm before the MLP, but in Gemma the norm after attention.
    {&L::mlp_norm, "ffn_norm.weight", "post_attention_layernorm.weight", Size::kHidden, Size::kOne, true, outside_gemma},
    {&L::post_attention_norm, "post_attention_norm.weight", "post_attention_layernorm.weight", Size::kHidden, Size::kOne, true,
     in_gemma},
    {&L::mlp_norm, "ffn_norm.weight", "pre_feedforward_layernorm.weight", Size::kHidden, Size::kOne, true, in_gemma},
    {&L::post_mlp_norm, "post_ffw_norm.weight", "post_feedforward_layernorm.weight", Size::kHidden, Size::kOne, true, in_gemma},
    {&L::gate, "ffn_gate.weight", "mlp.gate_proj.weight", Size::kMlp, Size::kHidden, false, always},
    {&L::up, "ffn_up.weight", "mlp.up_proj.weight", Size::kMlp, Size::kHidden, false, always},
    {&L::down, "ffn_down.weight", "mlp.down_proj.weight", Size::kHidden, Size::kMlp, false, always},
    {&L::gate_bias, "ffn_gate.bias", "mlp.gate_proj.bias", Size::kMlp, Size::kOne, false, with_mlp_bias},
    {&L::up_bias, "ffn_up.bias", "mlp.up_proj.bias", Size::kMlp, Size::kOne, false, with_mlp_bias},
    {&L::down_bias, "ffn_down.bias", "mlp.down_proj.bias", Size::kHidden, Size::kOne, false, with_mlp_bias},
};

std::int64_t value_of(Size size, const ModelConfig& c) {
  switch (size) {
    case Size::kOne:
      return 0;
    case Size::kHidden:
      return c.hidden_size;
    case Size::kQueries:
      return std::int64_t{c.num_heads} * c.head_size;
    case Size::kKeys:
      return std::int64_t{c.num_kv_heads} * c.head_size;
    case Size::kHead:
      return c.head_size;
    case Size::kMlp:
      return c.mlp_size;
  }
  return 0;
}

}  // namespace

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config, Naming naming, Weights& weights) {
  const bool gguf = naming == Naming::kGguf;
  weights.layers.assign(static_cast<std::size_t>(config.num_layers), {});
  std::vector<ExpectedTensor> expected;
  expected.push_back(
      {gguf ? "token_embd.weight" : "embed_tokens.weight", config.vocab_size, config.hidden_size, &weights.embedding, false});
  expected.push_back({gguf ? "output_norm.weight" : "norm.weight", config.hidden_size, 0, &weights.output_norm, true});
  if (!config.tied_embeddings) {
    expected.push_back({gguf ? "output.weight" : "lm_head.weight", config.vocab_size, config.hidden_size, &weights.head, false});
  }
  for (int layer = 0; layer < config.num_layers; ++layer) {
    for (const LayerTensor& tensor : kLayerTensors) {
      if (!tensor.present(config)) continue;
      expected.push_back({fmt::format("{}.{}.{}", gguf ? "blk" : "layers", layer, gguf ? tensor.gguf : tensor.hugging_face),
                          value_of(tensor.rows, config), value_of(tensor.columns, config),
                          &(weights.layers[static_cast<std::size_t>(layer)].*tensor.place), tensor.is_norm});
    }
  }
  return expected;
}

}  // namespace quire
