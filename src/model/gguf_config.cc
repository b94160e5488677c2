// ModelConfig from GGUF metadata. Keys are "<architecture>.<name>"; what a key's absence means is written at each.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/check.h"
#include "model/gguf.h"
#include "model/model_config.h"
#include "model/rope_scaling.h"

namespace quire {
namespace {

constexpr std::array<std::string_view, 4> kArchitectures = {"llama", "qwen2", "qwen3", "gemma3"};

// Metadata under the architecture's prefix.
class Keys {
 public:
  Keys(const GgufFile& file, std::string_view architecture) : file_(file), prefix_(std::string(architecture) + ".") {}

  std::string key(std::string_view name) const { return prefix_ + std::string(name); }
  const GgufFile& file() const { return file_; }
  const std::string& path() const { return file_.path(); }

  std::optional<int> find_int(std::string_view name) const {
    const auto value = file_.find_integer(key(name));
    return value ? std::optional(narrow(*value, name)) : std::nullopt;
  }
  int required_int(std::string_view name) const { return narrow(file_.integer(key(name)), name); }
  std::optional<double> find_number(std::string_view name) const { return file_.find_number(key(name)); }

  // A number that may be given once or for every layer. One value serves all layers here, so the list has to be uniform.
  std::optional<int> find_per_layer(std::string_view name, int num_layers) const {
    const GgufValue* value = file_.find_value(key(name));
    if (value == nullptr || !value->is_array) return find_int(name);
    const auto list = *file_.find_integers(key(name));
    if (list.empty() || list.size() != static_cast<std::size_t>(num_layers)) {
      fail(ErrorCode::kInvalidFile, "{}: metadata '{}' has {} elements for {} layers", path(), key(name), list.size(),
           num_layers);
    }
    for (const std::int64_t element : list) {
      if (element != list[0]) {
        fail(ErrorCode::kUnsupported, "{}: metadata '{}' differs between layers ({} and {})", path(), key(name), list[0],
             element);
      }
    }
    return narrow(list[0], name);
  }

 private:
  int narrow(std::int64_t value, std::string_view name) const {
    if (value < 0 || value > std::numeric_limits<int>::max()) {
      fail(ErrorCode::kInvalidFile, "{}: metadata '{}' is {}", path(), key(name), value);
    }
    return static_cast<int>(value);
  }
  const GgufFile& file_;
  std::string prefix_;
};

void refuse_variants(const Keys& keys) {
  if (keys.find_int("expert_count").value_or(0) > 0) {
    fail(ErrorCode::kUnsupported, "{}: a mixture of {} experts is not supported", keys.path(), *keys.find_int("expert_count"));
  }
  if (!keys.file().find_bool(keys.key("attention.causal")).value_or(true)) {
    fail(ErrorCode::kUnsupported, "{}: metadata '{}' is false: not a causal model", keys.path(), keys.key("attention.causal"));
  }
  for (const char* tensor : {"rope_factors_long.weight", "rope_factors_short.weight"}) {
    if (keys.file().find_tensor(tensor) != nullptr) {
      fail(ErrorCode::kUnsupported, "{}: tensor '{}': RoPE scaling 'longrope' is not supported", keys.path(), tensor);
    }
  }
}

// ggml's yarn: cos and sin are multiplied by attn_factor * (1 + 0.1 ln(factor)).
void read_yarn(const Keys& keys, RopeScaling& scaling) {
  scaling.original_context =
      keys.find_number("rope.scaling.original_context_length").value_or(keys.required_int("context_length"));
  scaling.beta_fast = keys.find_number("rope.scaling.yarn_beta_fast").value_or(scaling.beta_fast);
  scaling.beta_slow = keys.find_number("rope.scaling.yarn_beta_slow").value_or(scaling.beta_slow);
  scaling.magnitude = keys.find_number("rope.scaling.attn_factor").value_or(1.0) *
                      keys.find_number("rope.scaling.yarn_attn_factor").value_or(1.0) * yarn_magnitude(scaling.factor);
  // -1 is how ggml spells "not set"; anything else would change the ramp.
  const double ext_factor = keys.find_number("rope.scaling.yarn_ext_factor").value_or(1.0);
  if (ext_factor != 1.0 && ext_factor != -1.0) {
    fail(ErrorCode::kUnsupported, "{}: metadata '{}' is {}", keys.path(), keys.key("rope.scaling.yarn_ext_factor"), ext_factor);
  }
  if (keys.find_number("rope.scaling.yarn_log_multiplier").value_or(0.0) != 0.0) {
    fail(ErrorCode::kUnsupported, "{}: metadata '{}' is set", keys.path(), keys.key("rope.scaling.yarn_log_multiplier"));
  }
}

// A factor without a type is linear; `rope.scale_linear` is its old name. 0 means none.
RopeScaling read_scaling(const Keys& keys) {
  RopeScaling scaling;
  double factor = keys.find_number("rope.scaling.factor").value_or(0.0);
  if (factor == 0.0) factor = keys.find_number("rope.scale_linear").value_or(0.0);
  const std::string_view type = keys.file().find_string(keys.key("rope.scaling.type")).value_or("linear");
  if (type == "none" || (type == "linear" && factor == 0.0)) return scaling;
  scaling.factor = factor == 0.0 ? 1.0 : factor;
  if (type == "linear") {
    scaling.method = RopeScaling::Method::kLinear;
  } else if (type == "yarn") {
    scaling.method = RopeScaling::Method::kYarn;
    read_yarn(keys, scaling);
  } else {
    fail(ErrorCode::kUnsupported, "{}: RoPE scaling '{}' is not supported (none, linear and yarn are)", keys.path(), type);
  }
  check_rope_scaling(scaling, keys.path());
  return scaling;
}

// Llama 3's scaling comes as a tensor of divisors [rotary_dims / 2].
void apply_rope_divisors(const GgufFile& file, RopeConfig& rope) {
  const FileTensor* divisors = file.find_tensor("rope_freqs.weight");
  if (divisors == nullptr) return;
  if (divisors->dtype != DType::kF32 || divisors->rank != 1 ||
      divisors->dim(0) != static_cast<std::int64_t>(rope.inv_freq.size())) {
    fail(ErrorCode::kInvalidFile, "{}: tensor {}, expected F32 [{}]", file.path(), divisors->describe(), rope.inv_freq.size());
  }
  for (std::size_t i = 0; i < rope.inv_freq.size(); ++i) {
    float divisor;
    std::memcpy(&divisor, divisors->data.data() + i * sizeof(float), sizeof(float));
    if (!(std::isfinite(divisor) && divisor > 0.0f)) {
      fail(ErrorCode::kInvalidFile, "{}: tensor 'rope_freqs.weight' element {} is {}", file.path(), i, divisor);
    }
    rope.inv_freq[i] /= divisor;
  }
}

// A pattern n: every n-th layer sees everything, the others a window; 0: all slide. Or one bool for each layer.
std::vector<int> windows_from_pattern(const Keys& keys, int num_layers, int window, int default_pattern) {
  std::vector<int> windows(static_cast<std::size_t>(num_layers), window);
  const std::string key = keys.key("attention.sliding_window_pattern");
  const GgufValue* value = keys.file().find_value(key);
  if (value != nullptr && value->is_array) {
    const auto sliding = *keys.file().find_bools(key);
    if (sliding.size() != windows.size()) {
      fail(ErrorCode::kInvalidFile, "{}: metadata '{}' has {} elements for {} layers", keys.path(), key, sliding.size(),
           num_layers);
    }
    for (std::size_t i = 0; i < windows.size(); ++i) windows[i] = sliding[i] ? window : 0;
    return windows;
  }
  const int pattern = keys.find_int("attention.sliding_window_pattern").value_or(default_pattern);
  for (int i = 0; i < num_layers; ++i) {
    if (pattern > 0 && i % pattern == pattern - 1) windows[static_cast<std::size_t>(i)] = 0;
  }
  return windows;
}

std::vector<int> read_windows(const Keys& keys, const ModelConfig& config) {
  const int window = keys.find_int("attention.sliding_window").value_or(0);
  if (config.is_gemma() && window > 0) return windows_from_pattern(keys, config.num_layers, window, 6);
  if (window == 0 || window >= config.max_context) return std::vector<int>(static_cast<std::size_t>(config.num_layers), 0);
  const bool has_pattern = keys.file().contains(keys.key("attention.sliding_window_pattern"));
  // Mistral 7B v0.1 slides in all layers. Qwen's files name a window that the model may not use: without a pattern, who knows.
  if (!has_pattern && config.family != "llama") {
    fail(ErrorCode::kUnsupported, "{}: metadata '{}' is {}, but no pattern says in which layers", keys.path(),
         keys.key("attention.sliding_window"), window);
  }
  return windows_from_pattern(keys, config.num_layers, window, 0);
}

void read_rope(const Keys& keys, ModelConfig& config) {
  const int rotary_dims = keys.find_int("rope.dimension_count").value_or(config.head_size);
  if (rotary_dims < 2 || rotary_dims > config.head_size || rotary_dims % 2 != 0) {
    fail(ErrorCode::kInvalidFile, "{}: metadata '{}' is {}, the head size {}", keys.path(), keys.key("rope.dimension_count"),
         rotary_dims, config.head_size);
  }
  const auto read_base = [&keys](const char* name, double absent) {
    const double base = keys.find_number(name).value_or(absent);
    if (!(base > 1.0))
      fail(ErrorCode::kInvalidFile, "{}: metadata '{}' is {}, expected more than 1", keys.path(), keys.key(name), base);
    return base;
  };
  // The converter reorders the rows of Q and K for this architecture alone, so that pairs lie side by side.
  const RopeKind kind = config.family == "llama" ? RopeKind::kInterleaved : RopeKind::kHalfSplit;
  config.rope_full = make_rope(rotary_dims, read_base("rope.freq_base", 1e4), read_scaling(keys), kind);
  apply_rope_divisors(keys.file(), config.rope_full);
  if (config.is_gemma()) {  // local layers: a base of their own, never scaled
    config.rope_sliding = make_rope(rotary_dims, read_base("rope.freq_base_swa", 1e4), RopeScaling{}, kind);
  } else {
    config.rope_sliding = config.rope_full;
  }
  if (!config.has_sliding_layers()) config.rope_sliding = {};
}

// No key holds query_pre_attn_scalar. The 27B model alone (62 layers) scales by hidden size per head, not by head size.
float read_attention_scale(const Keys& keys, const ModelConfig& config) {
  if (const auto scale = keys.find_number("attention.scale"); scale && *scale != 0.0) return static_cast<float>(*scale);
  const bool gemma_27b = config.is_gemma() && config.num_layers == 62;
  const double size = gemma_27b ? static_cast<double>(config.hidden_size) / config.num_heads : config.head_size;
  return static_cast<float>(1.0 / std::sqrt(size));
}

// Special-token ids; -1 and 2^32 - 1 are how files say "none".
void check_token_ids(const GgufFile& file, std::int64_t num_tokens) {
  constexpr std::array<std::string_view, 9> kNames = {"bos",       "eos",     "eot", "eom", "unknown",
                                                      "seperator", "padding", "cls", "mask"};
  for (const std::string_view name : kNames) {
    const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
    const std::int64_t id = file.find_integer(key).value_or(-1);
    if (id == -1 || id == 0xFFFFFFFF) continue;
    if (id < 0 || id >= num_tokens) {
      fail(ErrorCode::kInvalidFile, "{}: metadata '{}' is {}, the vocabulary has {} tokens", file.path(), key, id, num_tokens);
    }
  }
}

// The tokenizer's arrays agree with each other and with the embedding, in type and length.
void check_vocabulary(const GgufFile& file, std::int64_t embedding_rows) {
  const GgufValue* tokens = file.find_value("tokenizer.ggml.tokens");
  if (tokens == nullptr) return;
  const auto check = [&](std::string_view key, auto is_expected, const char* expected) {
    const GgufValue* value = file.find_value(key);
    if (value == nullptr) return;
    if (!value->is_array || !is_expected(value->type))
      fail(ErrorCode::kInvalidFile, "{}: metadata '{}' is not an array of {}", file.path(), key, expected);
    if (value->count != tokens->count) {
      fail(ErrorCode::kInvalidFile, "{}: metadata '{}' has {} elements for {} tokens", file.path(), key, value->count,
           tokens->count);
    }
  };
  const auto is_string = [](GgufType t) { return t == GgufType::kString; };
  const auto is_float = [](GgufType t) { return t == GgufType::kF32 || t == GgufType::kF64; };
  const auto is_integer = [](GgufType t) { return t <= GgufType::kI32 || t == GgufType::kU64 || t == GgufType::kI64; };
  check("tokenizer.ggml.tokens", is_string, "strings");
  check("tokenizer.ggml.scores", is_float, "floats");
  check("tokenizer.ggml.token_type", is_integer, "integers");
  if (tokens->count > static_cast<std::uint64_t>(embedding_rows)) {
    fail(ErrorCode::kInvalidFile, "{}: {} tokens, but tensor 'token_embd.weight' has {} rows", file.path(), tokens->count,
         embedding_rows);
  }
  check_token_ids(file, static_cast<std::int64_t>(tokens->count));
}

int embedding_rows(const GgufFile& file) {
  const FileTensor* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr) fail(ErrorCode::kInvalidFile, "{}: tensor 'token_embd.weight' is missing", file.path());
  if (embedding->rank != 2 || embedding->dim(0) > std::numeric_limits<int>::max()) {
    fail(ErrorCode::kInvalidFile, "{}: tensor {}, expected a matrix", file.path(), embedding->describe());
  }
  return static_cast<int>(embedding->dim(0));
}

void read_sizes(const Keys& keys, ModelConfig& config) {
  const auto per_layer = [&](const char* name) {
    const auto value = keys.find_per_layer(name, config.num_layers);
    if (!value) fail(ErrorCode::kInvalidFile, "{}: metadata '{}' is missing", keys.path(), keys.key(name));
    return *value;
  };
  config.num_layers = keys.required_int("block_count");
  config.hidden_size = keys.required_int("embedding_length");
  config.max_context = keys.required_int("context_length");
  config.mlp_size = per_layer("feed_forward_length");
  config.num_heads = per_layer("attention.head_count");
  config.num_kv_heads = keys.find_per_layer("attention.head_count_kv", config.num_layers).value_or(config.num_heads);
  config.vocab_size = embedding_rows(keys.file());
  // Keys and values have their own lengths; each is hidden size / heads if absent.
  const auto head_length = [&](const char* name) {
    if (const auto length = keys.find_int(name)) return *length;
    if (config.num_heads == 0 || config.hidden_size % config.num_heads != 0) {
      fail(ErrorCode::kInvalidFile, "{}: {} heads do not divide the hidden size {}, and there is no metadata '{}'", keys.path(),
           config.num_heads, config.hidden_size, keys.key(name));
    }
    return config.hidden_size / config.num_heads;
  };
  config.head_size = head_length("attention.key_length");
  if (const int values = head_length("attention.value_length"); values != config.head_size) {
    fail(ErrorCode::kUnsupported, "{}: keys have {} elements a head, values {}", keys.path(), config.head_size, values);
  }
}

}  // namespace

ModelConfig model_config_from_gguf(const GgufFile& file) {
  const std::string_view architecture = file.string("general.architecture");
  if (std::find(kArchitectures.begin(), kArchitectures.end(), architecture) == kArchitectures.end()) {
    fail(ErrorCode::kUnsupported, "{}: architecture '{}' is not supported (llama, qwen2, qwen3 and gemma3 are)", file.path(),
         architecture);
  }
  const Keys keys(file, architecture);
  refuse_variants(keys);
  ModelConfig config;
  config.family = architecture;
  read_sizes(keys, config);
  check_model_sizes(config, file.path());
  config.rms_eps = static_cast<float>(file.number(keys.key("attention.layer_norm_rms_epsilon")));
  config.attention_softcap = static_cast<float>(keys.find_number("attn_logit_softcapping").value_or(0.0));
  config.final_softcap = static_cast<float>(keys.find_number("final_logit_softcapping").value_or(0.0));
  if (config.is_gemma()) {
    config.activation = Activation::kGeluTanh;
    config.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
  }
  config.attention_scale = read_attention_scale(keys, config);
  config.tied_embeddings = file.find_tensor("output.weight") == nullptr;
  config.attention_bias = file.find_tensor("blk.0.attn_q.bias") != nullptr || architecture == "qwen2";
  config.output_bias = file.find_tensor("blk.0.attn_output.bias") != nullptr;
  config.mlp_bias = file.find_tensor("blk.0.ffn_gate.bias") != nullptr;
  config.layer_windows = read_windows(keys, config);
  read_rope(keys, config);
  check_vocabulary(file, config.vocab_size);
  check_model_config(config, file.path());
  return config;
}

}  // namespace quire
