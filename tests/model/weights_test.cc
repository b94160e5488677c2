// The same tiny model in both formats loads to the same numbers: names, shapes, permutation, Gemma's norms, biases, prefixes.
#include "model/weights.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>

#include <map>

#include "model/dequantize.h"
#include "model/model_files.h"
#include "tests/support/expect_error.h"
#include "tests/support/file_writers.h"
#include "tests/support/memory_backend.h"
#include "tests/support/tiny_model.h"

namespace quire {
namespace {

using test::MemoryBackend;
using test::TinyModelSpec;

std::filesystem::path temp(const std::string& name) {
  return std::filesystem::path(::testing::TempDir()) / ("weights_test_" + name);
}

std::vector<float> floats(const TensorView& view) {
  if (view.data == nullptr) return {};
  std::vector<float> values(static_cast<std::size_t>(view.num_elements()));
  dequantize_row(view.dtype, view.data, values.data(), view.num_elements());
  return values;
}

// Rows of each head back in the order of Hugging Face: the first of each pair, then the second.
std::vector<float> split_heads(const std::vector<float>& values, int head_size, std::size_t columns) {
  std::vector<float> out(values.size());
  const auto size = static_cast<std::size_t>(head_size);
  for (std::size_t row = 0; row < values.size() / columns; ++row) {
    const std::size_t within = row % size, to = row - within + (within % 2 == 0 ? within / 2 : size / 2 + within / 2);
    for (std::size_t c = 0; c < columns; ++c) out[to * columns + c] = values[row * columns + c];
  }
  return out;
}

// Every tensor by a name of its own, as floats, in the conventions of the computation.
std::map<std::string, std::vector<float>> all_tensors(const LoadedModel& model) {
  std::map<std::string, std::vector<float>> all;
  const Weights& w = model.weights;
  const bool interleaved = model.config.rope_full.kind == RopeKind::kInterleaved;
  all["embedding"] = floats(w.embedding);
  all["output_norm"] = floats(w.output_norm);
  all["head"] = floats(w.head);
  for (std::size_t i = 0; i < w.layers.size(); ++i) {
    const LayerWeights& l = w.layers[i];
    const std::pair<const char*, const TensorView*> named[] = {{"attention_norm", &l.attention_norm},
                                                               {"q", &l.q},
                                                               {"k", &l.k},
                                                               {"v", &l.v},
                                                               {"q_bias", &l.q_bias},
                                                               {"k_bias", &l.k_bias},
                                                               {"v_bias", &l.v_bias},
                                                               {"q_norm", &l.q_norm},
                                                               {"k_norm", &l.k_norm},
                                                               {"o", &l.o},
                                                               {"o_bias", &l.o_bias},
                                                               {"post_attention_norm", &l.post_attention_norm},
                                                               {"mlp_norm", &l.mlp_norm},
                                                               {"gate", &l.gate},
                                                               {"up", &l.up},
                                                               {"down", &l.down},
                                                               {"post_mlp_norm", &l.post_mlp_norm}};
    for (const auto& [name, view] : named) {
      auto values = floats(*view);
      const bool rotated = view == &l.q || view == &l.k;
      if (rotated && interleaved)
        values = split_heads(values, model.config.head_size, static_cast<std::size_t>(model.config.hidden_size));
      all[std::to_string(i) + "." + name] = std::move(values);
    }
  }
  return all;
}

std::vector<std::string> differences(const LoadedModel& a, const LoadedModel& b) {
  std::vector<std::string> names;
  const auto left = all_tensors(a), right = all_tensors(b);
  for (const auto& [name, values] : left) {
    if (values != right.at(name)) names.push_back(name);
  }
  return names;
}

class Formats : public ::testing::TestWithParam<std::tuple<const char*, DType>> {
 protected:
  TinyModelSpec spec() const {
    TinyModelSpec spec = test::tiny_model_spec(std::get<0>(GetParam()));
    spec.weight_type = std::get<1>(GetParam());
    if (spec.weight_type == DType::kQ4_K) {
      spec.num_layers = 2;
      spec.hidden_size = spec.mlp_size = 256;
      spec.num_heads = 256 / spec.head_size;
      spec.num_kv_heads = spec.num_heads / 2;
    }
    return spec;
  }
};

TEST_P(Formats, HoldTheSameModel) {
  const auto file = temp("same.gguf"), directory = temp("same");
  std::filesystem::remove_all(directory);
  test::write_gguf(spec(), file);
  test::write_safetensors(spec(), directory);
  MemoryBackend backend(true);
  const LoadedModel gguf = load_model(file, backend);
  const LoadedModel hugging_face = load_model(directory, backend);
  EXPECT_THAT(differences(gguf, hugging_face), ::testing::IsEmpty());

  ModelConfig expected = gguf.config, config = hugging_face.config;
  EXPECT_EQ(config.end_token_ids, (std::vector<std::int32_t>{2, 0}));
  EXPECT_EQ(config.rope_full.kind, RopeKind::kHalfSplit);
  EXPECT_EQ(expected.rope_full.kind, expected.family == "llama" ? RopeKind::kInterleaved : RopeKind::kHalfSplit);
  config.end_token_ids.clear();
  expected.rope_full.kind = config.rope_full.kind;
  EXPECT_EQ(config, expected);
}

INSTANTIATE_TEST_SUITE_P(
    All, Formats,
    ::testing::Combine(::testing::Values("llama", "qwen2", "qwen3", "gemma3"),
                       ::testing::Values(DType::kF32, DType::kF16, DType::kBF16, DType::kQ4_0, DType::kQ4_K)),
    [](const auto& test) { return std::get<0>(test.param) + std::string(to_string(std::get<1>(test.param))); });

TEST(Weights, AreWhatTheWriterMeant) {
  const TinyModelSpec spec = test::tiny_model_spec("gemma3");
  const auto directory = temp("meant");
  test::write_safetensors(spec, directory);
  MemoryBackend backend(true);
  const LoadedModel model = load_model(directory, backend);
  const auto all = all_tensors(model);
  std::map<std::string, std::vector<float>> written;
  for (auto& tensor : test::tiny_weights(spec)) written[tensor.name] = tensor.values;
  EXPECT_EQ(all.at("embedding"), written.at("embed_tokens.weight"));
  EXPECT_EQ(all.at("3.q"), written.at("layers.3.self_attn.q_proj.weight"));
  EXPECT_EQ(all.at("3.down"), written.at("layers.3.mlp.down_proj.weight"));
  for (auto& [name, values] : written) {
    if (!name.ends_with("norm.weight")) continue;
    for (float& value : values) value += 1.0f;
  }
  EXPECT_EQ(all.at("output_norm"), written.at("norm.weight"));
  EXPECT_EQ(all.at("6.post_attention_norm"), written.at("layers.6.post_attention_layernorm.weight"));
  EXPECT_EQ(all.at("6.mlp_norm"), written.at("layers.6.pre_feedforward_layernorm.weight"));
  EXPECT_EQ(all.at("6.post_mlp_norm"), written.at("layers.6.post_feedforward_layernorm.weight"));
  EXPECT_EQ(all.at("6.k_norm"), written.at("layers.6.self_attn.k_norm.weight"));
}

TEST(Weights, AreReadInPlaceWhereTheBackendCan) {
  const TinyModelSpec spec = test::tiny_model_spec("qwen2");
  const auto file = temp("place.gguf");
  test::write_gguf(spec, file);
  MemoryBackend host(true), device(false);
  const LoadedModel on_host = load_model(file, host);
  const LoadedModel on_device = load_model(file, device);
  EXPECT_THAT(differences(on_host, on_device), ::testing::IsEmpty());
  EXPECT_EQ(on_host.weights.num_bytes, on_device.weights.num_bytes);
  EXPECT_EQ(device.uploaded_bytes(), static_cast<std::size_t>(on_device.weights.num_bytes));
  EXPECT_EQ(host.uploaded_bytes(), 4u * (5 * 64 + 2 * (64 + 32 + 32))) << "norms and biases alone";
  EXPECT_NE(on_host.weights.head.data, on_host.weights.embedding.data);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(on_device.weights.layers[1].k.data) % 64, 0u);
}

TEST(Weights, OutliveTheirFile) {
  const auto file = temp("outlive.gguf");
  test::write_gguf(test::tiny_model_spec("llama"), file);
  MemoryBackend backend(true);
  const LoadedModel model = load_model(file, backend);
  const auto before = all_tensors(model);
  std::filesystem::remove(file);
  EXPECT_EQ(all_tensors(model), before);
}

TEST(Weights, AreAlignedWhateverTheFile) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    TinyModelSpec spec = test::tiny_model_spec("qwen3");
    spec.weight_type = type;
    const auto odd = temp("odd"), even = temp("even");
    test::write_safetensors(spec, odd, {.aligned = false});
    test::write_safetensors(spec, even);
    MemoryBackend backend(true);
    const LoadedModel model = load_model(odd, backend);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(model.weights.embedding.data) % static_cast<std::size_t>(block_bytes(type)), 0u);
    EXPECT_THAT(differences(model, load_model(even, backend)), ::testing::IsEmpty());
  }
}

// More megabytes than are filled in together: matrices cut into several pieces, and many that share one.
TEST(Weights, LargeOnesAreFilledPieceByPiece) {
  TinyModelSpec spec;
  spec.weight_type = DType::kQ8_0;
  spec.hidden_size = 256;
  spec.mlp_size = 1024;
  spec.vocab_size = 40'000;
  spec.num_layers = 8;
  spec.with_tokenizer = false;
  const auto parts = test::write_split_gguf(spec, temp("large"), 2);
  MemoryBackend host(true), device(false);
  const LoadedModel in_place = load_model(parts[0], host);
  const LoadedModel uploaded = load_model(parts[0], device);
  EXPECT_THAT(differences(in_place, uploaded), ::testing::IsEmpty());
  EXPECT_EQ(device.uploaded_bytes(), static_cast<std::size_t>(uploaded.weights.num_bytes));
}

TEST(Weights, ComeFromShardsAndSplitFiles) {
  const TinyModelSpec spec = test::tiny_model_spec("qwen3");
  const auto whole = temp("whole"), sharded = temp("sharded");
  test::write_safetensors(spec, whole);
  test::write_safetensors(spec, sharded, {.num_shards = 4});
  const auto parts = test::write_split_gguf(spec, temp("split"), 3);
  MemoryBackend backend(true);
  const LoadedModel model = load_model(whole, backend);
  EXPECT_THAT(differences(model, load_model(sharded, backend)), ::testing::IsEmpty());
  EXPECT_THAT(differences(model, load_model(parts[2], backend)), ::testing::IsEmpty());
}

TEST(Weights, ComeFromMultimodalCheckpoints) {
  const TinyModelSpec spec = test::tiny_model_spec("gemma3");
  MemoryBackend backend(true);
  const auto plain = temp("plain");
  test::write_safetensors(spec, plain);
  const LoadedModel model = load_model(plain, backend);
  for (const char* prefix : {"language_model.model.", "model.language_model."}) {
    const auto directory = temp("multimodal");
    test::write_safetensors(spec, directory, {.prefix = prefix});
    EXPECT_THAT(differences(model, load_model(directory, backend)), ::testing::IsEmpty());
  }
}

// Hugging Face multiplies the embedding by a constant of its type; GGUF's readers by the float.
TEST(Weights, RoundTheEmbeddingScaleToTheTypeOfACheckpoint) {
  TinyModelSpec spec = test::tiny_model_spec("gemma3");
  spec.hidden_size = 96;
  MemoryBackend backend(true);
  const auto scale = [&](DType type, bool gguf) {
    spec.weight_type = type;
    const auto path = temp(gguf ? "scale.gguf" : "scale");
    gguf ? test::write_gguf(spec, path) : test::write_safetensors(spec, path);
    return load_model(path, backend).config.embedding_scale;
  };
  EXPECT_EQ(scale(DType::kF32, false), std::sqrt(96.0f));
  EXPECT_EQ(scale(DType::kBF16, false), 9.8125f);
  EXPECT_EQ(scale(DType::kF16, false), 9.796875f);
  EXPECT_EQ(scale(DType::kBF16, true), std::sqrt(96.0f));
}

// A checkpoint with one thing changed.
class Changed {
 public:
  explicit Changed(const TinyModelSpec& spec) {
    std::filesystem::remove_all(directory_);
    test::write_safetensors(spec, directory_);
    for (auto& tensor : test::tiny_weights(spec)) {
      std::vector<std::int64_t> shape = {tensor.rows};
      if (tensor.columns > 0) shape.push_back(tensor.columns);
      test::Bytes data;
      for (const float value : tensor.values) test::append(data, value);
      tensors.push_back({"model." + tensor.name, DType::kF32, shape, data});
    }
  }
  LoadedModel load() {
    test::write_file(directory_ / "model.safetensors", test::safetensors_bytes(tensors));
    MemoryBackend backend(true);
    return load_model(directory_, backend);
  }
  test::TensorBytes& tensor(const std::string& name) {
    for (auto& t : tensors) {
      if (t.name == name) return t;
    }
    throw std::out_of_range(name);
  }
  std::vector<test::TensorBytes> tensors;

 private:
  std::filesystem::path directory_ = temp("changed");
};

TEST(Weights, EachHasToBeThereWithItsShape) {
  TinyModelSpec spec = test::tiny_model_spec("qwen2");
  spec.weight_type = DType::kF32;
  const Changed whole(spec);
  for (const auto& [name, shape] :
       std::map<std::string, std::vector<std::int64_t>>{{"model.layers.1.self_attn.k_proj.weight", {64, 32}},
                                                        {"model.layers.1.self_attn.k_proj.bias", {1, 32}},
                                                        {"model.layers.0.input_layernorm.weight", {32, 2}},
                                                        {"model.layers.0.mlp.down_proj.weight", {6144}},
                                                        {"model.embed_tokens.weight", {160, 128}}}) {
    Changed reshaped = whole;
    reshaped.tensor(name).shape = shape;
    EXPECT_ERROR(reshaped.load(), ErrorCode::kInvalidFile, "tensor '" + name.substr(6) + "' F32 [");
  }
  Changed short_of_rows = whole;
  short_of_rows.tensor("model.layers.1.mlp.up_proj.weight").shape = {95, 64};
  short_of_rows.tensor("model.layers.1.mlp.up_proj.weight").data.resize(95 * 64 * 4);
  EXPECT_ERROR(short_of_rows.load(), ErrorCode::kInvalidFile, "'layers.1.mlp.up_proj.weight' F32 [95, 64], expected [96, 64]");
  for (std::size_t i = 0; i < whole.tensors.size(); ++i) {
    Changed without = whole;
    without.tensors.erase(without.tensors.begin() + static_cast<std::ptrdiff_t>(i));
    std::string name = whole.tensors[i].name.substr(6);
    EXPECT_ERROR(without.load(), ErrorCode::kInvalidFile, "tensor '" + name + "' is missing");
  }
}

TEST(Weights, WithoutARoleAreRefused) {
  TinyModelSpec spec = test::tiny_model_spec("llama");
  spec.weight_type = DType::kF32;
  Changed extra(spec);
  extra.tensors.push_back({"model.layers.0.self_attn.q_norm.weight", DType::kF32, {16}, test::Bytes(64)});
  EXPECT_ERROR(extra.load(), ErrorCode::kUnsupported,
               "tensor 'layers.0.self_attn.q_norm.weight' F32 [16] has no role in a llama model");
  // A tied model may hold its head all the same, and old checkpoints their RoPE frequencies.
  Changed redundant(spec);
  redundant.tensors.push_back({"lm_head.weight", DType::kF32, {320, 96}, test::Bytes(320 * 96 * 4)});
  redundant.tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", DType::kF32, {8}, test::Bytes(32)});
  const LoadedModel model = redundant.load();
  EXPECT_EQ(model.weights.head.data, model.weights.embedding.data);
}

TEST(ModelFiles, DescribeAModelWithoutLoadingIt) {
  const auto file = temp("describe.gguf");
  test::write_gguf(test::tiny_model_spec("qwen2"), file);
  const ModelFiles files = open_model(file);
  EXPECT_EQ(files.config.family, "qwen2");
  std::size_t bytes = 0;
  for (const FileTensor& tensor : files.tensors) bytes += tensor.data.size();
  MemoryBackend backend(true);
  EXPECT_EQ(static_cast<std::int64_t>(bytes), load_model(file, backend).weights.num_bytes);
}

}  // namespace
}  // namespace quire
