// write_fuzz_seeds tests/fuzz/corpus: writes the seeds of gguf_fuzz and safetensors_fuzz anew. Small on purpose: the readers'
// paths are in the headers, and a fuzzer is as fast as its inputs are short.
#include <cstdio>

#include "tests/support/file_writers.h"
#include "tests/support/tiny_config.h"
#include "tests/support/tiny_model.h"

namespace quire::test {
namespace {

TinyModelSpec seed_spec(const std::string& family, const std::string& rope_scaling) {
  TinyModelSpec spec = tiny_model_spec(family);
  spec.hidden_size = spec.mlp_size = 32;
  spec.num_heads = 2;
  spec.num_kv_heads = 1;
  spec.head_size = 16;
  spec.vocab_size = 4;
  spec.rope_scaling = rope_scaling;
  return spec;
}

Bytes gguf_seed(const TinyModelSpec& spec) {
  GgufWriter writer;
  add_gguf_config(spec, writer);
  if (spec.family == "gemma3") writer.add_bools("gemma3.attention.sliding_window_pattern", std::vector<bool>(7, true));
  writer.add("tokenizer.ggml.model", "llama");
  writer.add_array("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b", "", "d"});
  writer.add_array("tokenizer.ggml.scores", std::vector<float>{0, -1, -2, -3});
  writer.add_array("tokenizer.ggml.token_type", std::vector<std::int32_t>{1, 1, 3, 6});
  writer.add("tokenizer.ggml.eos_token_id", std::uint32_t{2});
  writer.add_tensor({"token_embd.weight", DType::kQ4_0, {4, 32}, Bytes(72)});
  writer.add_tensor({"output_norm.weight", DType::kF32, {32}, Bytes(128)});
  const std::vector<float> divisors = tiny_rope_divisors(spec);
  if (!divisors.empty()) {
    const auto bytes = std::as_bytes(std::span(divisors));
    writer.add_tensor({"rope_freqs.weight", DType::kF32, {8}, Bytes(bytes.begin(), bytes.end())});
  }
  return writer.finish();
}

// A value of every type, and a tensor of every kind of block.
Bytes gguf_of_everything() {
  GgufWriter writer;
  writer.add("general.alignment", std::uint32_t{64});
  writer.add("u8", std::uint8_t{1});
  writer.add("i8", std::int8_t{1});
  writer.add("u16", std::uint16_t{1});
  writer.add("i16", std::int16_t{1});
  writer.add("i64", std::int64_t{1});
  writer.add("u64", std::uint64_t{1});
  writer.add("f64", 1.0);
  writer.add("bool", true);
  writer.add_array("u8s", std::vector<std::uint8_t>{1, 2});
  writer.add_array("u64s", std::vector<std::uint64_t>{1, 2});
  writer.add_tensor({"a", DType::kF16, {2, 3}, Bytes(12)});
  writer.add_tensor({"b", DType::kQ6_K, {1, 256}, Bytes(210)});
  writer.add_tensor({"c", DType::kBF16, {1, 1, 1, 1}, Bytes(2)});
  return writer.finish(64);
}

void write_seeds(const std::filesystem::path& corpus) {
  const auto gguf = corpus / "gguf_fuzz", safetensors = corpus / "safetensors_fuzz";
  std::filesystem::create_directories(gguf);
  std::filesystem::create_directories(safetensors);
  const std::pair<const char*, const char*> models[] = {
      {"llama", "llama3"}, {"llama", "linear"}, {"qwen2", "yarn"}, {"qwen3", ""}, {"gemma3", "linear"}};
  for (const auto& [family, scaling] : models) {
    const TinyModelSpec spec = seed_spec(family, scaling);
    const std::string name = std::string(family) + (*scaling == '\0' ? "" : "_") + scaling;
    write_file(gguf / (name + ".gguf"), gguf_seed(spec));
    write_file(safetensors / (name + ".json"), tiny_config_json(spec, {}));
    write_file(safetensors / (name + "_parameters.json"), tiny_config_json(spec, {.rope_parameters = true}));
  }
  write_file(gguf / "everything.gguf", gguf_of_everything());
  write_file(safetensors / "wrapped.json", tiny_config_json(seed_spec("gemma3", ""), {.prefix = "language_model.model."}));
  write_file(safetensors / "two.safetensors",
             safetensors_bytes({{"a", DType::kF32, {2, 2}, Bytes(16)}, {"b", DType::kBF16, {3}, Bytes(6)}}, false));
  write_file(safetensors / "scalar_and_empty.safetensors",
             safetensors_bytes({{"a", DType::kF16, {}, Bytes(2)}, {"b", DType::kF32, {0, 4}, {}}}));
}

}  // namespace
}  // namespace quire::test

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: write_fuzz_seeds DIRECTORY\n");
    return 2;
  }
  quire::test::write_seeds(argv[1]);
  return 0;
}
