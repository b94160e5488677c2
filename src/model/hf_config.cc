// ModelConfig from config.json and generation_config.json of a Hugging Face checkpoint. Absent fields mean what the reference
// implementation's configuration classes default to; null means absent.
#include <boost/json.hpp>

#include <cmath>
#include <limits>

#include "core/check.h"
#include "model/model_config.h"
#include "model/rope_scaling.h"
#include "model/strict_json.h"

namespace quire {
namespace {

namespace json = boost::json;

// Typed access to the fields of one object.
class Fields {
 public:
  Fields(const json::object& object, const std::string& file) : object_(object), file_(file) {}

  const std::string& file() const { return file_; }
  const json::value* find(std::string_view name) const {
    const json::value* value = object_.if_contains({name.data(), name.size()});
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  std::optional<int> find_int(std::string_view name) const {
    const json::value* value = find(name);
    if (value == nullptr) return std::nullopt;
    if (!value->is_int64() || value->get_int64() < 0 || value->get_int64() > std::numeric_limits<int>::max()) {
      fail_type(name, *value, "a non-negative integer");
    }
    return static_cast<int>(value->get_int64());
  }
  std::optional<double> find_number(std::string_view name) const {
    const json::value* value = find(name);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number()) fail_type(name, *value, "a number");
    const double number = value->to_number<double>();
    if (!std::isfinite(number)) fail_type(name, *value, "a finite number");
    return number;
  }
  std::optional<bool> find_bool(std::string_view name) const {
    const json::value* value = find(name);
    if (value == nullptr) return std::nullopt;
    if (!value->is_bool()) fail_type(name, *value, "true or false");
    return value->get_bool();
  }
  std::optional<std::string> find_string(std::string_view name) const {
    const json::value* value = find(name);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string()) fail_type(name, *value, "a string");
    return std::string(value->get_string().c_str(), value->get_string().size());
  }
  std::optional<Fields> find_object(std::string_view name) const {
    const json::value* value = find(name);
    if (value == nullptr) return std::nullopt;
    if (!value->is_object()) fail_type(name, *value, "an object");
    return Fields(value->get_object(), file_);
  }
  int required_int(std::string_view name) const { return required(find_int(name), name); }
  double required_number(std::string_view name) const { return required(find_number(name), name); }

  [[noreturn]] void fail_type(std::string_view name, const json::value& value, const char* expected) const {
    fail(ErrorCode::kInvalidFile, "{}: '{}' is {}, expected {}", file_, name, json::serialize(value).substr(0, 80), expected);
  }

 private:
  template <typename T>
  T required(std::optional<T> value, std::string_view name) const {
    if (!value) fail(ErrorCode::kInvalidFile, "{}: '{}' is missing", file_, name);
    return *value;
  }
  const json::object& object_;
  const std::string& file_;
};

// What absent fields mean; 0: the field has to be there.
struct Defaults {
  std::string_view model_type;
  std::string_view family;
  int num_kv_heads;  // absent, not null: null means as many as heads
  int head_size;     // 0: hidden size / heads
  int sliding_window;
  bool tied;
};
constexpr Defaults kDefaults[] = {
    {"llama", "llama", 0, 0, 0, false},
    {"mistral", "llama", 8, 0, 4096, false},
    {"qwen2", "qwen2", 32, 0, 4096, false},
    {"qwen3", "qwen3", 32, 128, 4096, false},
    {"gemma3_text", "gemma3", 4, 256, 4096, true},
};

const Defaults& defaults_of(const std::string& model_type, const std::string& file) {
  for (const Defaults& defaults : kDefaults) {
    if (model_type == defaults.model_type) return defaults;
  }
  fail(ErrorCode::kUnsupported, "{}: model_type '{}' is not supported (llama, mistral, qwen2, qwen3, gemma3 and gemma3_text are)",
       file, model_type);
}

// The method's fields, of `rope_scaling` or `rope_parameters`.
RopeScaling read_scaling(const Fields& fields, int max_context) {
  RopeScaling scaling;
  std::string method = fields.find_string("rope_type").value_or("");
  if (method.empty()) method = fields.find_string("type").value_or("default");
  if (method == "default") return scaling;
  if (method != "linear" && method != "llama3" && method != "yarn") {
    fail(ErrorCode::kUnsupported, "{}: RoPE scaling '{}' is not supported (linear, llama3 and yarn are)", fields.file(), method);
  }
  scaling.factor = fields.required_number("factor");
  if (method == "linear") scaling.method = RopeScaling::Method::kLinear;
  if (method == "llama3") {
    scaling.method = RopeScaling::Method::kLlama3;
    scaling.low_freq_factor = fields.required_number("low_freq_factor");
    scaling.high_freq_factor = fields.required_number("high_freq_factor");
    scaling.original_context = fields.required_number("original_max_position_embeddings");
  }
  if (method == "yarn") {
    scaling.method = RopeScaling::Method::kYarn;
    scaling.original_context = fields.find_number("original_max_position_embeddings").value_or(max_context);
    scaling.beta_fast = fields.find_number("beta_fast").value_or(scaling.beta_fast);
    scaling.beta_slow = fields.find_number("beta_slow").value_or(scaling.beta_slow);
    scaling.truncate = fields.find_bool("truncate").value_or(true);
    const double mscale = fields.find_number("mscale").value_or(0.0);
    const double mscale_all_dim = fields.find_number("mscale_all_dim").value_or(0.0);
    const double magnitude = mscale != 0.0 && mscale_all_dim != 0.0
                                 ? yarn_magnitude(scaling.factor, mscale) / yarn_magnitude(scaling.factor, mscale_all_dim)
                                 : yarn_magnitude(scaling.factor);
    scaling.magnitude = fields.find_number("attention_factor").value_or(magnitude);
  }
  check_rope_scaling(scaling, fields.file());
  return scaling;
}

RopeConfig read_rope_of(const Fields& fields, std::optional<double> theta, double default_theta, const ModelConfig& config) {
  const double base = theta.value_or(default_theta);
  if (!(base > 1.0)) fail(ErrorCode::kInvalidFile, "{}: 'rope_theta' is {}, expected more than 1", fields.file(), base);
  return make_rope(config.head_size, base, read_scaling(fields, config.max_context), RopeKind::kHalfSplit);
}

// Two spellings: rope_theta beside rope_scaling, or (transformers 5) all in rope_parameters, for Gemma by type of layer.
void read_rope(const Fields& fields, ModelConfig& config) {
  const double default_theta = config.is_gemma() ? 1e6 : 1e4;
  const json::object nothing;
  const Fields none(nothing, fields.file());
  const auto partial = fields.find_number("partial_rotary_factor");
  if (partial && *partial != 1.0) {
    fail(ErrorCode::kUnsupported, "{}: 'partial_rotary_factor' is {}", fields.file(), *partial);
  }
  if (const auto parameters = fields.find_object("rope_parameters")) {
    const auto full = parameters->find_object("full_attention");
    const auto sliding = parameters->find_object("sliding_attention");
    if (full || sliding) {
      if (!full || !sliding) {
        fail(ErrorCode::kInvalidFile, "{}: 'rope_parameters' names one of full_attention and sliding_attention only",
             fields.file());
      }
      config.rope_full = read_rope_of(*full, full->find_number("rope_theta"), default_theta, config);
      config.rope_sliding = read_rope_of(*sliding, sliding->find_number("rope_theta"), 1e4, config);
      return;
    }
    auto theta = parameters->find_number("rope_theta");
    if (!theta) theta = fields.find_number("rope_theta");
    config.rope_full = read_rope_of(*parameters, theta, default_theta, config);
  } else {
    config.rope_full =
        read_rope_of(fields.find_object("rope_scaling").value_or(none), fields.find_number("rope_theta"), default_theta, config);
  }
  // Gemma's local layers have a base of their own and are never scaled.
  config.rope_sliding =
      config.is_gemma() ? read_rope_of(none, fields.find_number("rope_local_base_freq"), 1e4, config) : config.rope_full;
}

std::vector<int> windows_from_types(const Fields& fields, const json::value& types, int num_layers, int window) {
  if (!types.is_array() || types.get_array().size() != static_cast<std::size_t>(num_layers)) {
    fail(ErrorCode::kInvalidFile, "{}: 'layer_types' is not a list of {} types", fields.file(), num_layers);
  }
  std::vector<int> windows;
  for (const json::value& type : types.get_array()) {
    if (type == "full_attention") {
      windows.push_back(0);
    } else if (type == "sliding_attention") {
      if (window == 0)
        fail(ErrorCode::kInvalidFile, "{}: 'layer_types' has sliding layers, but there is no window", fields.file());
      windows.push_back(window);
    } else {
      fail(ErrorCode::kUnsupported, "{}: 'layer_types' has {}", fields.file(), json::serialize(type).substr(0, 80));
    }
  }
  return windows;
}

std::vector<int> read_windows(const Fields& fields, const json::object& object, const Defaults& defaults,
                              const ModelConfig& config) {
  const bool is_qwen = defaults.family.starts_with("qwen");
  int window = fields.find_int("sliding_window").value_or(0);
  if (!object.contains("sliding_window")) window = defaults.sliding_window;
  if (defaults.model_type == "llama" || (is_qwen && !fields.find_bool("use_sliding_window").value_or(false))) window = 0;
  if (const json::value* types = fields.find("layer_types")) return windows_from_types(fields, *types, config.num_layers, window);

  std::vector<int> windows(static_cast<std::size_t>(config.num_layers), window);
  if (window == 0) return windows;
  auto pattern = fields.find_int("sliding_window_pattern");
  if (!pattern) pattern = fields.find_int("_sliding_window_pattern");
  const int full_every = config.is_gemma() ? pattern.value_or(6) : 0;
  if (config.is_gemma() && full_every == 0) fail(ErrorCode::kInvalidFile, "{}: 'sliding_window_pattern' is 0", fields.file());
  const int first_sliding = is_qwen ? fields.find_int("max_window_layers").value_or(28) : 0;
  for (int i = 0; i < config.num_layers; ++i) {
    const bool full = i < first_sliding || (full_every > 0 && (i + 1) % full_every == 0);
    if (full) windows[static_cast<std::size_t>(i)] = 0;
  }
  return windows;
}

// An id, or a list of ids.
void add_end_tokens(const Fields& fields, std::vector<std::int32_t>& ids) {
  const json::value* value = fields.find("eos_token_id");
  if (value == nullptr) return;
  const auto add = [&](const json::value& id) {
    if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() > std::numeric_limits<std::int32_t>::max()) {
      fields.fail_type("eos_token_id", *value, "a token id or a list of them");
    }
    const auto token = static_cast<std::int32_t>(id.get_int64());
    if (std::find(ids.begin(), ids.end(), token) == ids.end()) ids.push_back(token);
  };
  if (!value->is_array()) return add(*value);
  for (const json::value& id : value->get_array()) add(id);
}

void read_sizes(const Fields& fields, const json::object& object, const Defaults& defaults, ModelConfig& config) {
  const bool gemma = config.is_gemma();  // its files leave out what equals the defaults
  const auto size = [&](const char* name, int gemma_default) {
    return gemma ? fields.find_int(name).value_or(gemma_default) : fields.required_int(name);
  };
  config.num_layers = size("num_hidden_layers", 26);
  config.hidden_size = size("hidden_size", 2304);
  config.mlp_size = size("intermediate_size", 9216);
  config.num_heads = size("num_attention_heads", 8);
  config.vocab_size = size("vocab_size", 262'208);
  config.max_context = size("max_position_embeddings", 131'072);
  config.num_kv_heads = fields.find_int("num_key_value_heads").value_or(config.num_heads);
  if (!object.contains("num_key_value_heads") && defaults.num_kv_heads > 0) config.num_kv_heads = defaults.num_kv_heads;
  if (const auto head_size = fields.find_int("head_dim")) {
    config.head_size = *head_size;
  } else if (defaults.head_size > 0) {
    config.head_size = defaults.head_size;
  } else if (config.num_heads > 0 && config.hidden_size % config.num_heads == 0) {
    config.head_size = config.hidden_size / config.num_heads;
  } else {
    fail(ErrorCode::kInvalidFile, "{}: {} heads do not divide the hidden size {}, and there is no 'head_dim'", fields.file(),
         config.num_heads, config.hidden_size);
  }
}

void read_activation(const Fields& fields, ModelConfig& config) {
  const char* name = config.is_gemma() ? "hidden_activation" : "hidden_act";
  const std::string expected = config.is_gemma() ? "gelu_pytorch_tanh" : "silu";
  config.activation = config.is_gemma() ? Activation::kGeluTanh : Activation::kSilu;
  const std::string activation = fields.find_string(name).value_or(expected);
  if (activation != expected) {
    fail(ErrorCode::kUnsupported, "{}: '{}' is '{}', supported is '{}'", fields.file(), name, activation, expected);
  }
}

ModelConfig read_config(const json::object& object, const Defaults& defaults, const std::string& file) {
  const Fields fields(object, file);
  ModelConfig config;
  config.family = defaults.family;
  read_sizes(fields, object, defaults, config);
  check_model_sizes(config, file);
  read_activation(fields, config);
  config.rms_eps = static_cast<float>(fields.find_number("rms_norm_eps").value_or(1e-6));
  config.attention_softcap = static_cast<float>(fields.find_number("attn_logit_softcapping").value_or(0.0));
  config.final_softcap = static_cast<float>(fields.find_number("final_logit_softcapping").value_or(0.0));
  double attention_size = config.head_size;
  if (config.is_gemma()) {
    config.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
    attention_size = fields.find_number("query_pre_attn_scalar").value_or(256.0);
    if (fields.find_bool("use_bidirectional_attention").value_or(false)) {
      fail(ErrorCode::kUnsupported, "{}: 'use_bidirectional_attention' is true: not a causal model", file);
    }
  }
  config.attention_scale = static_cast<float>(1.0 / std::sqrt(attention_size));
  config.tied_embeddings = fields.find_bool("tie_word_embeddings").value_or(defaults.tied);
  const bool has_bias = fields.find_bool("attention_bias").value_or(false) && defaults.model_type != "mistral";
  config.attention_bias = config.family == "qwen2" || has_bias;
  config.output_bias = config.family != "qwen2" && has_bias;
  config.mlp_bias = defaults.model_type == "llama" && fields.find_bool("mlp_bias").value_or(false);
  config.layer_windows = read_windows(fields, object, defaults, config);
  read_rope(fields, config);
  if (!config.has_sliding_layers()) config.rope_sliding = {};
  add_end_tokens(fields, config.end_token_ids);
  return config;
}

}  // namespace

ModelConfig model_config_from_json(std::string_view config_json, std::string_view generation_config_json,
                                   const std::string& file) {
  const json::value value = parse_strict_json(config_json, file);
  if (!value.is_object()) fail(ErrorCode::kInvalidFile, "{}: not an object", file);
  const Fields top(value.get_object(), file);
  if (top.find("quantization_config") != nullptr) {
    fail(ErrorCode::kUnsupported, "{}: 'quantization_config': quantised safetensors are not supported", file);
  }
  std::string model_type = top.find_string("model_type").value_or("");
  const json::object* object = &value.get_object();
  if (model_type == "gemma3") {  // a vision model around the text model
    if (!top.find_object("text_config")) fail(ErrorCode::kInvalidFile, "{}: 'text_config' is missing", file);
    object = &top.find("text_config")->get_object();
    model_type = "gemma3_text";
  }
  ModelConfig config = read_config(*object, defaults_of(model_type, file), file);
  add_end_tokens(top, config.end_token_ids);
  if (!generation_config_json.empty()) {
    const std::string generation_file = file + " (generation_config.json)";
    const json::value generation = parse_strict_json(generation_config_json, generation_file);
    if (!generation.is_object()) fail(ErrorCode::kInvalidFile, "{}: not an object", generation_file);
    add_end_tokens(Fields(generation.get_object(), generation_file), config.end_token_ids);
  }
  check_model_config(config, file);
  return config;
}

}  // namespace quire
