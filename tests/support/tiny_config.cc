#include "tests/support/tiny_config.h"

#include <boost/json.hpp>

#include <cmath>
#include <numbers>

namespace quire::test {
namespace {

namespace json = boost::json;

constexpr double kTheta = 10000.0;
constexpr double kGemmaTheta = 1000000.0;

double theta_of(const TinyModelSpec& spec) { return spec.family == "gemma3" ? kGemmaTheta : kTheta; }

json::object rope_fields(const TinyModelSpec& spec) {
  json::object fields = {{"rope_type", spec.rope_scaling.empty() ? "default" : spec.rope_scaling}};
  if (spec.rope_scaling.empty()) return fields;
  fields["factor"] = kTinyRopeFactor;
  if (spec.rope_scaling != "linear") fields["original_max_position_embeddings"] = kTinyOriginalContext;
  if (spec.rope_scaling == "llama3") {
    fields["low_freq_factor"] = 1.0;
    fields["high_freq_factor"] = 4.0;
  }
  return fields;
}

void add_rope(const TinyModelSpec& spec, bool parameters, json::object& config) {
  if (!parameters) {
    config["rope_theta"] = theta_of(spec);
    if (!spec.rope_scaling.empty()) config["rope_scaling"] = rope_fields(spec);
    if (spec.family == "gemma3") config["rope_local_base_freq"] = kTheta;
    return;
  }
  json::object full = rope_fields(spec);
  full["rope_theta"] = theta_of(spec);
  if (spec.family != "gemma3") {
    config["rope_parameters"] = full;
    return;
  }
  config["rope_parameters"] = {{"full_attention", full},
                               {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", kTheta}}}};
}

}  // namespace

void add_gguf_config(const TinyModelSpec& spec, GgufWriter& writer) {
  const std::string p = spec.family + ".";
  const auto u32 = [](int value) { return static_cast<std::uint32_t>(value); };
  writer.add("general.architecture", spec.family);
  writer.add("general.name", "tiny");
  writer.add(p + "block_count", u32(spec.num_layers));
  writer.add(p + "context_length", u32(spec.max_context));
  writer.add(p + "embedding_length", u32(spec.hidden_size));
  writer.add(p + "feed_forward_length", u32(spec.mlp_size));
  writer.add(p + "attention.head_count", u32(spec.num_heads));
  writer.add(p + "attention.head_count_kv", u32(spec.num_kv_heads));
  writer.add(p + "attention.key_length", u32(spec.head_size));
  writer.add(p + "attention.value_length", u32(spec.head_size));
  writer.add(p + "attention.layer_norm_rms_epsilon", 1e-5f);
  writer.add(p + "rope.dimension_count", u32(spec.head_size));
  writer.add(p + "rope.freq_base", static_cast<float>(theta_of(spec)));
  if (spec.window > 0) writer.add(p + "attention.sliding_window", u32(spec.window));
  if (spec.rope_scaling == "linear" || spec.rope_scaling == "yarn") {
    writer.add(p + "rope.scaling.type", spec.rope_scaling);
    writer.add(p + "rope.scaling.factor", static_cast<float>(kTinyRopeFactor));
    writer.add(p + "rope.scaling.original_context_length", u32(kTinyOriginalContext));
  }
}

std::string tiny_config_json(const TinyModelSpec& spec, const SafetensorsOptions& options) {
  const bool gemma = spec.family == "gemma3";
  json::object config = {{"model_type", gemma          ? "gemma3_text"
                                        : spec.mistral ? "mistral"
                                                       : spec.family},
                         {"num_hidden_layers", spec.num_layers},
                         {"hidden_size", spec.hidden_size},
                         {"intermediate_size", spec.mlp_size},
                         {"num_attention_heads", spec.num_heads},
                         {"num_key_value_heads", spec.num_kv_heads},
                         {"head_dim", spec.head_size},
                         {"vocab_size", spec.vocab_size},
                         {"max_position_embeddings", spec.max_context},
                         {"rms_norm_eps", 1e-5},
                         {"tie_word_embeddings", spec.tied},
                         {"eos_token_id", 2}};
  config[gemma ? "hidden_activation" : "hidden_act"] = gemma ? "gelu_pytorch_tanh" : "silu";
  if (gemma) config["query_pre_attn_scalar"] = spec.head_size;
  config["sliding_window"] = spec.window > 0 ? json::value(spec.window) : json::value(nullptr);
  add_rope(spec, options.rope_parameters, config);
  if (options.prefix.starts_with("model.") && options.prefix != "model.language_model.") return json::serialize(config);
  return json::serialize(json::object{{"model_type", spec.family}, {"text_config", config}, {"eos_token_id", {2, 0}}});
}

std::vector<float> tiny_rope_divisors(const TinyModelSpec& spec) {
  if (spec.rope_scaling != "llama3") return {};
  std::vector<float> divisors;
  for (int i = 0; i < spec.head_size / 2; ++i) {
    const double turns = kTinyOriginalContext * std::pow(theta_of(spec), -2.0 * i / spec.head_size) / (2.0 * std::numbers::pi);
    const double smooth = (turns - 1.0) / 3.0;  // from the low to the high frequency factor, 1 to 4
    const double kept = turns > 4.0 ? 1.0 : turns < 1.0 ? 0.0 : smooth;
    divisors.push_back(static_cast<float>(1.0 / (kept + (1.0 - kept) / kTinyRopeFactor)));
  }
  return divisors;
}

}  // namespace quire::test
