#include "tests/support/tiny_model.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "tests/support/file_writers.h"
#include "tests/support/quantize.h"
#include "tests/support/tiny_config.h"
#include "tests/support/tiny_tokenizer.h"

namespace quire::test {
namespace {

// SplitMix64 (Steele et al. 2014, doi:10.1145/2660193.2660195): enough for weights, and the same everywhere.
class Random {
 public:
  Random(std::uint64_t seed, std::string_view name) : state_(seed) {
    for (const char c : name) state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  }
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  // About normal: the sum of twelve uniforms.
  double normal() {
    double sum = -6.0;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }

 private:
  std::uint64_t state_;
};

bool is_gemma(const TinyModelSpec& spec) { return spec.family == "gemma3"; }

// The type that a matrix with rows of `columns` elements gets, as quantising programs fall back too.
DType stored_type(const TinyModelSpec& spec, std::int64_t columns) {
  if (columns % block_elements(spec.weight_type) == 0) return spec.weight_type;
  return columns % 32 == 0 ? DType::kQ8_0 : DType::kF32;
}

// Collects the tensors of a model in file order.
class WeightMaker {
 public:
  explicit WeightMaker(const TinyModelSpec& spec) : spec_(spec) {}

  void matrix(const std::string& name, const std::string& gguf_name, std::int64_t rows, std::int64_t columns, double deviation) {
    FloatTensor tensor{name, gguf_name, rows, columns, {}};
    Random random(spec_.seed, name);
    tensor.values.resize(static_cast<std::size_t>(rows * columns));
    for (float& value : tensor.values) value = static_cast<float>(deviation * random.normal());
    tensors_.push_back(std::move(tensor));
  }
  void projection(const std::string& name, const std::string& gguf_name, std::int64_t rows, std::int64_t columns) {
    matrix(name, gguf_name, rows, columns, 1.0 / std::sqrt(static_cast<double>(columns)));
  }
  // Multiples of 1/128 of at most 1/2 around `centre`: exact in every type, so that all formats hold the same.
  void vector(const std::string& name, const std::string& gguf_name, std::int64_t rows, float centre) {
    FloatTensor tensor{name, gguf_name, rows, 0, {}};
    Random random(spec_.seed, name);
    tensor.values.resize(static_cast<std::size_t>(rows));
    for (float& value : tensor.values) value = centre + static_cast<float>(static_cast<int>(random.next() % 129) - 64) / 128.0f;
    tensors_.push_back(std::move(tensor));
  }
  void norm(const std::string& name, const std::string& gguf_name, std::int64_t rows) {
    vector(name, gguf_name, rows, is_gemma(spec_) ? 0.0f : 1.0f);
  }
  std::vector<FloatTensor> take() { return std::move(tensors_); }

 private:
  const TinyModelSpec& spec_;
  std::vector<FloatTensor> tensors_;
};

void make_layer(const TinyModelSpec& spec, int layer, WeightMaker& make) {
  const std::string hf = fmt::format("layers.{}.", layer), gguf = fmt::format("blk.{}.", layer);
  const std::int64_t queries = std::int64_t{spec.num_heads} * spec.head_size,
                     keys = std::int64_t{spec.num_kv_heads} * spec.head_size;
  make.norm(hf + "input_layernorm.weight", gguf + "attn_norm.weight", spec.hidden_size);
  for (const auto& [letter, rows] : {std::pair{'q', queries}, {'k', keys}, {'v', keys}}) {
    const std::string hf_name = hf + "self_attn." + letter + "_proj.", gguf_name = gguf + "attn_" + letter + ".";
    make.projection(hf_name + "weight", gguf_name + "weight", rows, spec.hidden_size);
    if (spec.family == "qwen2") make.vector(hf_name + "bias", gguf_name + "bias", rows, 0.0f);
  }
  if (spec.family == "qwen3" || is_gemma(spec)) {
    make.norm(hf + "self_attn.q_norm.weight", gguf + "attn_q_norm.weight", spec.head_size);
    make.norm(hf + "self_attn.k_norm.weight", gguf + "attn_k_norm.weight", spec.head_size);
  }
  make.projection(hf + "self_attn.o_proj.weight", gguf + "attn_output.weight", spec.hidden_size, queries);
  if (is_gemma(spec)) {
    make.norm(hf + "post_attention_layernorm.weight", gguf + "post_attention_norm.weight", spec.hidden_size);
    make.norm(hf + "pre_feedforward_layernorm.weight", gguf + "ffn_norm.weight", spec.hidden_size);
    make.norm(hf + "post_feedforward_layernorm.weight", gguf + "post_ffw_norm.weight", spec.hidden_size);
  } else {
    make.norm(hf + "post_attention_layernorm.weight", gguf + "ffn_norm.weight", spec.hidden_size);
  }
  make.projection(hf + "mlp.gate_proj.weight", gguf + "ffn_gate.weight", spec.mlp_size, spec.hidden_size);
  make.projection(hf + "mlp.up_proj.weight", gguf + "ffn_up.weight", spec.mlp_size, spec.hidden_size);
  make.projection(hf + "mlp.down_proj.weight", gguf + "ffn_down.weight", spec.hidden_size, spec.mlp_size);
}

// Before they are rounded to the type that they are stored in.
std::vector<FloatTensor> exact_weights(const TinyModelSpec& spec) {
  WeightMaker make(spec);
  make.matrix("embed_tokens.weight", "token_embd.weight", spec.vocab_size, spec.hidden_size, 0.3);
  for (int layer = 0; layer < spec.num_layers; ++layer) make_layer(spec, layer, make);
  make.norm("norm.weight", "output_norm.weight", spec.hidden_size);
  if (!spec.tied) make.matrix("lm_head.weight", "output.weight", spec.vocab_size, spec.hidden_size, 0.3);
  return make.take();
}

// What the GGUF converter does to Q and K of llama: within each head, row i of the first half and row i of the second half become
// neighbours, so that rotated pairs do.
std::vector<float> interleave_heads(const FloatTensor& tensor, int head_size) {
  const auto columns = static_cast<std::size_t>(tensor.columns == 0 ? 1 : tensor.columns);
  const auto size = static_cast<std::size_t>(head_size);
  std::vector<float> out(tensor.values.size());
  for (std::size_t row = 0; row < static_cast<std::size_t>(tensor.rows); ++row) {
    const std::size_t head = row / size, within = row % size;
    const std::size_t from = head * size + within % 2 * (size / 2) + within / 2;
    std::copy_n(tensor.values.begin() + static_cast<std::ptrdiff_t>(from * columns), columns,
                out.begin() + static_cast<std::ptrdiff_t>(row * columns));
  }
  return out;
}

TensorBytes gguf_tensor(const TinyModelSpec& spec, const FloatTensor& tensor) {
  std::vector<float> values = tensor.values;
  const bool q_or_k = tensor.name.find("q_proj") != std::string::npos || tensor.name.find("k_proj") != std::string::npos;
  if (spec.family == "llama" && q_or_k) values = interleave_heads(tensor, spec.head_size);
  if (is_gemma(spec) && tensor.name.ends_with("norm.weight")) {
    for (float& value : values) value += 1.0f;
  }
  if (tensor.columns == 0) return {tensor.gguf_name, DType::kF32, {tensor.rows}, quantize(DType::kF32, values)};
  const DType type = stored_type(spec, tensor.columns);
  return {tensor.gguf_name, type, {tensor.rows, tensor.columns}, quantize(type, values)};
}

std::vector<TensorBytes> gguf_tensors(const TinyModelSpec& spec) {
  std::vector<TensorBytes> tensors;
  for (const FloatTensor& tensor : exact_weights(spec)) tensors.push_back(gguf_tensor(spec, tensor));
  if (const std::vector<float> divisors = tiny_rope_divisors(spec); !divisors.empty()) {
    tensors.push_back(
        {"rope_freqs.weight", DType::kF32, {static_cast<std::int64_t>(divisors.size())}, quantize(DType::kF32, divisors)});
  }
  return tensors;
}

void add_metadata(const TinyModelSpec& spec, GgufWriter& writer) {
  add_gguf_config(spec, writer);
  if (spec.with_tokenizer) TinyTokenizer::make(spec.vocab_size).add_to(writer);
}

}  // namespace

TinyModelSpec tiny_model_spec(const std::string& family) {
  TinyModelSpec spec;
  spec.family = family;
  spec.vocab_size = tiny_vocab_size();
  if (family == "llama") {
    spec.hidden_size = 96;
    spec.num_heads = 6;
    spec.weight_type = DType::kQ4_0;
  } else if (family == "qwen2") {
    spec.tied = false;
    spec.weight_type = DType::kQ8_0;
  } else if (family == "qwen3") {
    spec.head_size = 32;
    spec.weight_type = DType::kBF16;
  } else {
    QUIRE_CHECK_MSG(family == "gemma3", "family {}", family);
    spec.num_layers = 7;
    spec.num_kv_heads = 1;
    spec.window = 4;
  }
  return spec;
}

int tiny_vocab_size() { return 320; }
int tiny_gemma_groups() { return 7; }  // one full layer, so groups of one

std::vector<FloatTensor> tiny_weights(const TinyModelSpec& spec) {
  std::vector<FloatTensor> tensors = exact_weights(spec);
  for (FloatTensor& tensor : tensors) {
    if (tensor.columns == 0) continue;
    const DType type = stored_type(spec, tensor.columns);
    tensor.values = dequantize(type, quantize(type, tensor.values));
  }
  return tensors;
}

void write_gguf(const TinyModelSpec& spec, const std::filesystem::path& path) {
  GgufWriter writer;
  add_metadata(spec, writer);
  for (TensorBytes& tensor : gguf_tensors(spec)) writer.add_tensor(std::move(tensor));
  write_file(path, writer.finish());
}

std::vector<std::filesystem::path> write_split_gguf(const TinyModelSpec& spec, const std::filesystem::path& stem, int num_parts) {
  std::vector<TensorBytes> tensors = gguf_tensors(spec);
  std::vector<std::filesystem::path> paths;
  for (int part = 0; part < num_parts; ++part) {
    GgufWriter writer;
    if (part == 0) add_metadata(spec, writer);
    writer.add("split.no", static_cast<std::uint16_t>(part));
    writer.add("split.count", static_cast<std::uint16_t>(num_parts));
    writer.add("split.tensors.count", static_cast<std::int32_t>(tensors.size()));
    const auto count = tensors.size(), parts = static_cast<std::size_t>(num_parts), p = static_cast<std::size_t>(part);
    for (std::size_t i = count * p / parts; i < count * (p + 1) / parts; ++i) writer.add_tensor(tensors[i]);
    paths.emplace_back(fmt::format("{}-{:05}-of-{:05}.gguf", stem.string(), part + 1, num_parts));
    write_file(paths.back(), writer.finish());
  }
  return paths;
}

void write_safetensors(const TinyModelSpec& spec, const std::filesystem::path& directory, const SafetensorsOptions& options) {
  std::filesystem::create_directories(directory);
  const DType type = is_quantized(spec.weight_type) ? DType::kF32 : spec.weight_type;
  std::vector<TensorBytes> tensors;
  for (const FloatTensor& tensor : tiny_weights(spec)) {
    std::vector<std::int64_t> shape = {tensor.rows};
    if (tensor.columns > 0) shape.push_back(tensor.columns);
    std::string prefix = options.prefix;
    if (tensor.name == "lm_head.weight") prefix = prefix.starts_with("language_model.") ? "language_model." : "";
    tensors.push_back({prefix + tensor.name, type, shape, quantize(type, tensor.values)});
  }
  std::string weight_map;
  const auto shards = static_cast<std::size_t>(options.num_shards);
  for (std::size_t shard = 0; shard < shards; ++shard) {
    const auto from = tensors.begin() + static_cast<std::ptrdiff_t>(tensors.size() * shard / shards);
    const auto to = tensors.begin() + static_cast<std::ptrdiff_t>(tensors.size() * (shard + 1) / shards);
    const std::string name =
        shards == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards);
    write_file(directory / name, safetensors_bytes({from, to}, options.aligned));
    for (auto tensor = from; tensor != to; ++tensor) {
      weight_map += fmt::format("{}\"{}\":\"{}\"", weight_map.empty() ? "" : ",", tensor->name, name);
    }
  }
  if (shards > 1) {
    write_file(directory / "model.safetensors.index.json", R"({"metadata":{"total_size":0},"weight_map":{)" + weight_map + "}}");
  }
  write_file(directory / "config.json", tiny_config_json(spec, options));
  write_file(directory / "generation_config.json", std::string_view(R"({"eos_token_id":[2,0]})"));
  if (!spec.with_tokenizer) return;
  const TinyTokenizer tokenizer = TinyTokenizer::make(spec.vocab_size);
  write_file(directory / "tokenizer.json", tokenizer.tokenizer_json());
  write_file(directory / "tokenizer_config.json", tokenizer.tokenizer_config_json());
}

}  // namespace quire::test
