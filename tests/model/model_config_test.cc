#include "model/model_config.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>

#include <cmath>
#include <functional>
#include <map>

#include "model/gguf.h"
#include "tests/support/expect_error.h"
#include "tests/support/file_writers.h"
#include "tests/support/memory_backend.h"
#include "tests/support/tiny_config.h"
#include "tests/support/tiny_model.h"

namespace quire {
namespace {

namespace json = boost::json;
using test::GgufWriter;
using test::TinyModelSpec;
using ::testing::Each;
using ::testing::ElementsAre;

// ---- GGUF

// Metadata of a tiny model, with `change` free to write more, less or otherwise.
class GgufModel {
 public:
  explicit GgufModel(std::string architecture = "llama") : architecture_(std::move(architecture)) {
    for (const auto& [name, value] : std::map<std::string, std::uint32_t>{{"block_count", 6},
                                                                          {"context_length", 512},
                                                                          {"embedding_length", 64},
                                                                          {"feed_forward_length", 128},
                                                                          {"attention.head_count", 4}}) {
      set(name, value);
    }
    set("attention.layer_norm_rms_epsilon", 1e-5f);
  }

  using Write = std::function<void(GgufWriter&, const std::string& key)>;
  GgufModel& set(const std::string& name, Write write) {
    values_[architecture_ + "." + name] = std::move(write);
    return *this;
  }
  template <typename T>
  GgufModel& set(const std::string& name, T value) {
    return set(name, Write([value](GgufWriter& w, const std::string& key) { w.add(key, value); }));
  }
  template <typename T>
  GgufModel& set_array(const std::string& name, std::vector<T> values) {
    return set(name, Write([values](GgufWriter& w, const std::string& key) { w.add_array(key, values); }));
  }
  GgufModel& remove(const std::string& name) {
    values_.erase(architecture_ + "." + name);
    return *this;
  }
  GgufModel& set_top(const std::string& key, Write write) {
    values_[key] = std::move(write);
    return *this;
  }
  GgufModel& tensor(test::TensorBytes tensor) {
    tensors_.push_back(std::move(tensor));
    return *this;
  }
  ModelConfig config() const {
    GgufWriter writer;
    writer.add("general.architecture", architecture_);
    for (const auto& [key, write] : values_) write(writer, key);
    writer.add_tensor({"token_embd.weight", DType::kF32, {4, 64}, test::Bytes(4 * 64 * 4)});
    for (const auto& tensor : tensors_) writer.add_tensor(tensor);
    const test::Bytes bytes = writer.finish();
    return model_config_from_gguf(GgufFile::parse(bytes, "f"));
  }

 private:
  std::string architecture_;
  std::map<std::string, Write> values_;
  std::vector<test::TensorBytes> tensors_;
};

#define EXPECT_REFUSED(model, part) EXPECT_ERROR((model).config(), ErrorCode::kInvalidFile, part)
#define EXPECT_UNSUPPORTED(model, part) EXPECT_ERROR((model).config(), ErrorCode::kUnsupported, part)

std::vector<float> powers(double base, int dims, double divisor = 1.0) {
  std::vector<float> values;
  for (int i = 0; i < dims / 2; ++i) values.push_back(static_cast<float>(std::pow(base, -2.0 * i / dims) / divisor));
  return values;
}

TEST(GgufConfig, DefaultsWhatIsAbsent) {
  const ModelConfig c = GgufModel().config();
  EXPECT_EQ(c.num_kv_heads, 4);
  EXPECT_EQ(c.head_size, 16);
  EXPECT_EQ(c.vocab_size, 4);
  EXPECT_EQ(c.rope_full.inv_freq, powers(1e4, 16));
  EXPECT_TRUE(c.rope_sliding.inv_freq.empty());
  EXPECT_EQ(c.rope_full.kind, RopeKind::kInterleaved);
  EXPECT_EQ(c.attention_scale, 0.25f);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_THAT(c.layer_windows, Each(0));
  EXPECT_EQ(c.activation, Activation::kSilu);
  EXPECT_EQ(GgufModel("qwen3").config().rope_full.kind, RopeKind::kHalfSplit);
}

TEST(GgufConfig, NamesWhatIsMissing) {
  for (const char* name : {"block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
                           "attention.layer_norm_rms_epsilon"}) {
    EXPECT_REFUSED(GgufModel().remove(name), "f: metadata 'llama." + std::string(name) + "' is missing");
  }
  EXPECT_UNSUPPORTED(GgufModel("mamba"), "architecture 'mamba' is not supported");
}

TEST(GgufConfig, TakesIntegersOfAnyWidth) {
  const ModelConfig c = GgufModel().set("block_count", std::uint64_t{6}).set("attention.head_count", std::int8_t{4}).config();
  EXPECT_EQ(c.num_layers, 6);
  EXPECT_REFUSED(GgufModel().set("block_count", std::int32_t{-1}), "metadata 'llama.block_count' is -1");
  EXPECT_REFUSED(GgufModel().set("block_count", std::uint64_t{1} << 40), "metadata 'llama.block_count' is 1099511627776");
}

TEST(GgufConfig, TakesPerLayerListsThatAreUniform) {
  const ModelConfig c = GgufModel().set_array("attention.head_count_kv", std::vector<int>(6, 2)).config();
  EXPECT_EQ(c.num_kv_heads, 2);
  EXPECT_UNSUPPORTED(GgufModel().set_array("attention.head_count_kv", std::vector<int>{2, 2, 4, 2, 2, 2}),
                     "metadata 'llama.attention.head_count_kv' differs between layers (2 and 4)");
  EXPECT_REFUSED(GgufModel().set_array("feed_forward_length", std::vector<int>(5, 128)), "has 5 elements for 6 layers");
  EXPECT_REFUSED(GgufModel().set("block_count", 0u).set_array("feed_forward_length", std::vector<int>{}),
                 "has 0 elements for 0 layers");
}

TEST(GgufConfig, ChecksSizes) {
  EXPECT_REFUSED(GgufModel().set("block_count", 0u), "the number of layers is 0");
  EXPECT_REFUSED(GgufModel().set("block_count", 1025u), "the number of layers is 1025");
  EXPECT_REFUSED(GgufModel().set("context_length", 0u), "the context length is 0");
  EXPECT_REFUSED(GgufModel().set("context_length", 1u << 31), "'llama.context_length' is 2147483648");
  EXPECT_REFUSED(GgufModel().set("attention.head_count", 0u), "0 heads do not divide the hidden size 64");
  EXPECT_REFUSED(GgufModel().set("attention.head_count", 5u), "5 heads do not divide the hidden size 64");
  EXPECT_REFUSED(GgufModel().set("attention.head_count_kv", 0u), "the number of KV heads is 0");
  EXPECT_REFUSED(GgufModel().set("attention.head_count_kv", 3u), "3 KV heads do not divide 4 heads");
  EXPECT_REFUSED(GgufModel().set("attention.head_count_kv", 8u), "the number of KV heads is 8");
  EXPECT_REFUSED(GgufModel().set("attention.key_length", 15u).set("attention.value_length", 15u),
                 "the head size is 15, expected an even");
  EXPECT_REFUSED(GgufModel().set("attention.key_length", 1u << 30).set("attention.value_length", 1u << 30),
                 "the head size is 1073741824");
  EXPECT_UNSUPPORTED(GgufModel().set("attention.key_length", 32u), "keys have 32 elements a head, values 16");
  EXPECT_REFUSED(GgufModel().set("attention.layer_norm_rms_epsilon", 0.0f), "the RMS epsilon is 0");
  EXPECT_REFUSED(GgufModel().set("attention.layer_norm_rms_epsilon", INFINITY), "is inf");
  EXPECT_REFUSED(GgufModel().set("rope.freq_base", 0.0f), "'llama.rope.freq_base' is 0");
  EXPECT_REFUSED(GgufModel().set("rope.freq_base", std::nanf("")), "'llama.rope.freq_base' is nan");
  EXPECT_REFUSED(GgufModel().set("rope.dimension_count", 18u), "'llama.rope.dimension_count' is 18, the head size 16");
  EXPECT_EQ(GgufModel().set("rope.dimension_count", 8u).config().rope_full.inv_freq, powers(1e4, 8));
  EXPECT_UNSUPPORTED(GgufModel().set("expert_count", 8u), "a mixture of 8 experts");
}

TEST(GgufConfig, ScalesRope) {
  const auto scaled = [](const char* type, double factor) {
    return GgufModel().set("rope.scaling.type", type).set("rope.scaling.factor", static_cast<float>(factor)).config().rope_full;
  };
  EXPECT_EQ(scaled("none", 4.0).inv_freq, powers(1e4, 16));
  EXPECT_EQ(scaled("linear", 4.0).inv_freq, powers(1e4, 16, 4.0));
  EXPECT_EQ(GgufModel().set("rope.scale_linear", 4.0f).config().rope_full.inv_freq, powers(1e4, 16, 4.0));
  EXPECT_UNSUPPORTED(GgufModel().set("rope.scaling.type", "longrope"), "RoPE scaling 'longrope' is not supported");
  EXPECT_UNSUPPORTED(GgufModel().tensor({"rope_factors_long.weight", DType::kF32, {8}, test::Bytes(32)}), "'longrope'");
  EXPECT_REFUSED(GgufModel().set("rope.scaling.factor", -1.0f), "RoPE scaling factor is -1");
}

// The formulas of section 4.2 by hand: 16 dimensions, base 1e4, original context 64, factor 4.
TEST(GgufConfig, ScalesRopeByYarn) {
  const RopeConfig rope = GgufModel()
                              .set("rope.scaling.type", "yarn")
                              .set("rope.scaling.factor", 4.0f)
                              .set("rope.scaling.original_context_length", 64u)
                              .config()
                              .rope_full;
  // dim(32) = 16 ln(64 / (64 pi)) / (2 ln 1e4) = -0.99 -> 0; dim(1) = 16 ln(64 / 2 pi) / (2 ln 1e4) = 2.016 -> 3.
  const auto plain = powers(1e4, 16);
  for (std::size_t i = 0; i < 8; ++i) {
    const double ramp = std::min(static_cast<double>(i) / 3.0, 1.0);
    EXPECT_FLOAT_EQ(rope.inv_freq[i], static_cast<float>(plain[i] / 4.0 * ramp + plain[i] * (1.0 - ramp))) << i;
  }
  EXPECT_FLOAT_EQ(rope.magnitude, 1.1386294f);
}

TEST(GgufConfig, DividesFrequenciesByTheTensor) {
  test::Bytes divisors;
  for (int i = 1; i <= 8; ++i) test::append(divisors, static_cast<float>(i));
  const auto inv_freq = GgufModel().tensor({"rope_freqs.weight", DType::kF32, {8}, divisors}).config().rope_full.inv_freq;
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(inv_freq[i], powers(1e4, 16)[i] / static_cast<float>(i + 1));
  EXPECT_REFUSED(GgufModel().tensor({"rope_freqs.weight", DType::kF32, {4}, test::Bytes(16)}),
                 "'rope_freqs.weight' F32 [4], expected F32 [8]");
  EXPECT_REFUSED(GgufModel().tensor({"rope_freqs.weight", DType::kF32, {8}, test::Bytes(32)}),
                 "'rope_freqs.weight' element 0 is 0");
}

TEST(GgufConfig, ReadsGemmasWindows) {
  const auto gemma = [] { return GgufModel("gemma3").set("attention.sliding_window", 4u).set("rope.freq_base", 1e6f); };
  const ModelConfig c = gemma().config();
  EXPECT_THAT(c.layer_windows, ElementsAre(4, 4, 4, 4, 4, 0));
  EXPECT_EQ(c.rope_full.inv_freq, powers(1e6, 16));
  EXPECT_EQ(c.rope_sliding.inv_freq, powers(1e4, 16));
  EXPECT_EQ(c.embedding_scale, 8.0f);
  EXPECT_THAT(gemma().set("attention.sliding_window_pattern", 2u).config().layer_windows, ElementsAre(4, 0, 4, 0, 4, 0));
  const auto list = gemma().set("attention.sliding_window_pattern", GgufModel::Write([](GgufWriter& w, const std::string& key) {
                                  w.add_bools(key, {true, false, false, true, false, false});
                                }));
  EXPECT_THAT(list.config().layer_windows, ElementsAre(4, 0, 0, 4, 0, 0));
  EXPECT_EQ(gemma().set("rope.freq_base_swa", 5e4f).config().rope_sliding.inv_freq, powers(5e4, 16));
  EXPECT_THAT(GgufModel("gemma3").config().layer_windows, Each(0)) << "no window, none slides";
  const ModelConfig scaled = gemma().set("rope.scaling.factor", 8.0f).config();
  EXPECT_EQ(scaled.rope_full.inv_freq, powers(1e6, 16, 8.0));
  EXPECT_EQ(scaled.rope_sliding.inv_freq, powers(1e4, 16)) << "local layers are never scaled";
}

TEST(GgufConfig, KnowsGemma27BByItsLayers) {
  const auto gemma = GgufModel("gemma3").set("attention.key_length", 32u).set("attention.value_length", 32u);
  EXPECT_FLOAT_EQ(GgufModel(gemma).config().attention_scale, 1.0f / std::sqrt(32.0f));
  EXPECT_FLOAT_EQ(GgufModel(gemma).set("block_count", 62u).config().attention_scale, 1.0f / std::sqrt(16.0f));
  EXPECT_FLOAT_EQ(GgufModel(gemma).set("attention.scale", 0.5f).config().attention_scale, 0.5f);
}

TEST(GgufConfig, WindowsOfOtherFamilies) {
  EXPECT_THAT(GgufModel().set("attention.sliding_window", 128u).config().layer_windows, Each(128)) << "Mistral 7B v0.1";
  EXPECT_THAT(GgufModel().set("attention.sliding_window", 512u).config().layer_windows, Each(0)) << "as wide as the context";
  EXPECT_UNSUPPORTED(GgufModel("qwen2").set("attention.sliding_window", 128u), "no pattern says in which layers");
}

TEST(PeerBugs, B140_VocabularyArraysHaveTheirTypes) {
  const auto with = [](const std::string& key, GgufModel::Write write) {
    return GgufModel()
        .set_top("tokenizer.ggml.tokens",
                 [](GgufWriter& w, const std::string& k) {
                   w.add_array(k, std::vector<std::string>{"a", "b", "c"});
                 })
        .set_top("tokenizer.ggml." + key, std::move(write));
  };
  const auto array = [](auto values) { return [values](GgufWriter& w, const std::string& key) { w.add_array(key, values); }; };
  EXPECT_REFUSED(with("scores", array(std::vector<std::uint8_t>{1, 2, 3})), "'tokenizer.ggml.scores' is not an array of floats");
  EXPECT_REFUSED(with("token_type", array(std::vector<std::string>{"a", "b", "c"})),
                 "'tokenizer.ggml.token_type' is not an array of integers");
  EXPECT_REFUSED(with("tokens", array(std::vector<int>{1, 2, 3})), "'tokenizer.ggml.tokens' is not an array of strings");
  EXPECT_REFUSED(with("scores", array(std::vector<float>{1, 2})), "'tokenizer.ggml.scores' has 2 elements for 3 tokens");
  EXPECT_REFUSED(with("tokens", array(std::vector<std::string>(5, "a"))), "5 tokens, but tensor 'token_embd.weight' has 4 rows");
  const auto id = [](std::int64_t value) { return [value](GgufWriter& w, const std::string& key) { w.add(key, value); }; };
  EXPECT_REFUSED(with("eos_token_id", id(3)), "'tokenizer.ggml.eos_token_id' is 3, the vocabulary has 3 tokens");
  EXPECT_REFUSED(with("bos_token_id", id(-2)), "'tokenizer.ggml.bos_token_id' is -2");
  EXPECT_NO_THROW(with("padding_token_id", id(0xFFFFFFFF)).config());
  EXPECT_NO_THROW(with("scores", array(std::vector<double>{1, 2, 3})).config());
}

// ---- config.json

json::object llama_json() {
  return {{"model_type", "llama"},         {"num_hidden_layers", 6},   {"hidden_size", 64},
          {"intermediate_size", 128},      {"num_attention_heads", 4}, {"vocab_size", 100},
          {"max_position_embeddings", 512}};
}
json::object json_of(const char* model_type) {
  json::object config = llama_json();
  config["model_type"] = model_type;
  return config;
}
json::object with(json::object config, json::object changes) {
  for (const auto& [key, value] : changes) config[key] = value;
  return config;
}
ModelConfig config_of(const json::object& config, std::string_view generation = {}) {
  return model_config_from_json(json::serialize(config), generation, "config.json");
}
#define EXPECT_JSON_REFUSED(config, part) EXPECT_ERROR(config_of(config), ErrorCode::kInvalidFile, part)
#define EXPECT_JSON_UNSUPPORTED(config, part) EXPECT_ERROR(config_of(config), ErrorCode::kUnsupported, part)

TEST(JsonConfig, DefaultsWhatIsAbsent) {
  const ModelConfig llama = config_of(llama_json());
  EXPECT_EQ(llama.family, "llama");
  EXPECT_EQ(llama.num_kv_heads, 4);
  EXPECT_EQ(llama.head_size, 16);
  EXPECT_EQ(llama.rms_eps, 1e-6f);
  EXPECT_EQ(llama.rope_full.kind, RopeKind::kHalfSplit);
  EXPECT_EQ(llama.rope_full.inv_freq, powers(1e4, 16));
  EXPECT_FALSE(llama.tied_embeddings);
  EXPECT_EQ(config_of(with(json_of("mistral"), {{"num_attention_heads", 16}, {"head_dim", 16}})).num_kv_heads, 8);
  EXPECT_EQ(config_of(with(json_of("mistral"), {{"num_key_value_heads", nullptr}})).num_kv_heads, 4);
  EXPECT_EQ(config_of(with(json_of("qwen3"), {{"num_key_value_heads", 2}})).head_size, 128);
  EXPECT_EQ(config_of({{"model_type", "gemma3_text"}}).vocab_size, 262208);
}

TEST(JsonConfig, ReadsTheDefaultsOfGemma4B) {
  const json::object text = {{"model_type", "gemma3_text"},
                             {"hidden_size", 2560},
                             {"intermediate_size", 10240},
                             {"num_hidden_layers", 34},
                             {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
                             {"sliding_window", 1024}};
  const ModelConfig c = config_of({{"model_type", "gemma3"}, {"text_config", text}, {"eos_token_id", {1, 106}}});
  EXPECT_EQ(c.family, "gemma3");
  EXPECT_EQ(c.num_heads, 8);
  EXPECT_EQ(c.num_kv_heads, 4);
  EXPECT_EQ(c.head_size, 256);
  EXPECT_EQ(c.max_context, 131072);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_EQ(c.attention_scale, 1.0f / 16.0f);
  EXPECT_EQ(c.rope_full.inv_freq, powers(1e6, 256, 8.0));
  EXPECT_EQ(c.rope_sliding.inv_freq, powers(1e4, 256));
  EXPECT_EQ(c.layer_windows[4], 1024);
  EXPECT_EQ(c.layer_windows[5], 0);
  EXPECT_THAT(c.end_token_ids, ElementsAre(1, 106));
}

TEST(JsonConfig, KnowsWhoHasBiases) {
  EXPECT_FALSE(config_of(llama_json()).attention_bias);
  const ModelConfig llama = config_of(with(llama_json(), {{"attention_bias", true}, {"mlp_bias", true}}));
  EXPECT_TRUE(llama.attention_bias && llama.output_bias && llama.mlp_bias);
  const ModelConfig qwen2 = config_of(with(json_of("qwen2"), {{"num_key_value_heads", 4}}));
  EXPECT_TRUE(qwen2.attention_bias);
  EXPECT_FALSE(qwen2.output_bias);
  const ModelConfig qwen3 = config_of(with(json_of("qwen3"), {{"num_key_value_heads", 4}}));
  EXPECT_FALSE(qwen3.attention_bias || qwen3.output_bias);
}

TEST(JsonConfig, ReadsWindows) {
  const auto mistral = with(json_of("mistral"), {{"num_key_value_heads", 4}});
  EXPECT_THAT(config_of(mistral).layer_windows, Each(4096));
  EXPECT_THAT(config_of(with(mistral, {{"sliding_window", nullptr}})).layer_windows, Each(0));
  EXPECT_THAT(config_of(with(mistral, {{"sliding_window", 7}})).layer_windows, Each(7));
  const auto qwen = with(json_of("qwen2"), {{"num_key_value_heads", 4}, {"sliding_window", 9}, {"max_window_layers", 4}});
  EXPECT_THAT(config_of(qwen).layer_windows, Each(0));
  EXPECT_THAT(config_of(with(qwen, {{"use_sliding_window", true}})).layer_windows, ElementsAre(0, 0, 0, 0, 9, 9));
  const json::object gemma = {{"model_type", "gemma3_text"}, {"num_hidden_layers", 4}, {"sliding_window", 5}};
  EXPECT_THAT(config_of(with(gemma, {{"sliding_window_pattern", 2}})).layer_windows, ElementsAre(5, 0, 5, 0));
  EXPECT_THAT(config_of(with(gemma, {{"_sliding_window_pattern", 3}})).layer_windows, ElementsAre(5, 5, 0, 5));
  const json::array types = {"full_attention", "sliding_attention", "full_attention", "full_attention"};
  EXPECT_THAT(config_of(with(gemma, {{"sliding_window_pattern", 2}, {"layer_types", types}})).layer_windows,
              ElementsAre(0, 5, 0, 0));
  EXPECT_JSON_REFUSED(with(llama_json(), {{"layer_types", types}}), "'layer_types' is not a list of 6 types");
  EXPECT_JSON_REFUSED(with(with(llama_json(), {{"layer_types", types}}), {{"num_hidden_layers", 4}}), "there is no window");
  EXPECT_JSON_UNSUPPORTED(with(gemma, {{"layer_types", {"full_attention", "linear_attention", "x", "y"}}}),
                          "\"linear_attention\"");
}

TEST(JsonConfig, ReadsBothSpellingsOfRope) {
  for (const char* scaling : {"", "linear", "llama3", "yarn"}) {
    for (const char* family : {"llama", "gemma3"}) {
      TinyModelSpec spec = test::tiny_model_spec(family);
      spec.rope_scaling = scaling;
      const auto read = [&](bool parameters) {
        return model_config_from_json(test::tiny_config_json(spec, {.rope_parameters = parameters}), {}, "config.json");
      };
      EXPECT_EQ(read(false), read(true)) << family << scaling;
      EXPECT_NE(read(true).rope_full, read(true).rope_sliding);
    }
  }
  const json::object old_kind = with(llama_json(), {{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}});
  EXPECT_EQ(config_of(old_kind).rope_full.inv_freq, powers(1e4, 16, 2.0));
  for (const char* kind : {"dynamic", "longrope", "mrope"}) {
    EXPECT_JSON_UNSUPPORTED(with(llama_json(), {{"rope_scaling", {{"rope_type", kind}, {"factor", 2.0}}}}),
                            "RoPE scaling '" + std::string(kind) + "' is not supported");
  }
  EXPECT_JSON_REFUSED(with(llama_json(), {{"rope_scaling", {{"rope_type", "linear"}}}}), "'factor' is missing");
  EXPECT_JSON_UNSUPPORTED(with(llama_json(), {{"partial_rotary_factor", 0.5}}), "'partial_rotary_factor' is 0.5");
}

// Both formats carry Llama 3's scaling, each in its way: a formula there, a tensor here. Far positions tell them apart.
TEST(JsonConfig, AgreesWithGgufOnScaledRope) {
  for (const char* scaling : {"linear", "llama3", "yarn"}) {
    TinyModelSpec spec = test::tiny_model_spec("llama");
    spec.rope_scaling = scaling;
    const auto path = std::filesystem::path(::testing::TempDir()) / "scaled_rope.gguf";
    test::write_gguf(spec, path);
    const RopeConfig gguf = model_config_from_gguf(GgufFile::open(path)).rope_full;
    const RopeConfig json = model_config_from_json(test::tiny_config_json(spec, {}), {}, "config.json").rope_full;
    EXPECT_EQ(gguf.magnitude, json.magnitude) << scaling;
    EXPECT_NE(gguf.inv_freq, powers(1e4, 16)) << scaling;
    for (std::size_t i = 0; i < 8; ++i) EXPECT_NEAR(gguf.inv_freq[i] / json.inv_freq[i], 1.0, 3e-7) << scaling << i;
  }
}

// The published numbers of Llama 3.1: factor 8, low 1, high 4, original context 8192, theta 5e5, 128 dimensions.
TEST(JsonConfig, ScalesRopeAsLlama31) {
  const json::object scaling = {{"rope_type", "llama3"},
                                {"factor", 8.0},
                                {"low_freq_factor", 1.0},
                                {"high_freq_factor", 4.0},
                                {"original_max_position_embeddings", 8192}};
  const auto inv_freq =
      config_of(with(llama_json(), {{"head_dim", 128}, {"rope_theta", 500000.0}, {"rope_scaling", scaling}})).rope_full.inv_freq;
  const auto plain = powers(5e5, 128);
  EXPECT_EQ(inv_freq[0], plain[0]);
  EXPECT_EQ(inv_freq[28], plain[28]) << "wavelength 1956: kept";
  const double turns = 8192.0 * plain[32] / (2.0 * M_PI), blend = (turns - 1.0) / 3.0;
  EXPECT_NEAR(turns, 1.844, 1e-3) << "between 1 and 4";
  EXPECT_FLOAT_EQ(inv_freq[32], static_cast<float>(plain[32] * ((1.0 - blend) / 8.0 + blend)));
  EXPECT_EQ(inv_freq[40], plain[40] / 8.0f);
  EXPECT_EQ(inv_freq[63], plain[63] / 8.0f);
}

TEST(JsonConfig, UnitesEndTokens) {
  const auto config = with(llama_json(), {{"eos_token_id", 7}});
  EXPECT_THAT(config_of(config).end_token_ids, ElementsAre(7));
  EXPECT_THAT(config_of(config, R"({"eos_token_id":[8,7,9]})").end_token_ids, ElementsAre(7, 8, 9));
  EXPECT_THAT(config_of(with(llama_json(), {{"eos_token_id", nullptr}})).end_token_ids, ElementsAre());
  EXPECT_JSON_REFUSED(with(llama_json(), {{"eos_token_id", 100}}), "an end-of-text token id is 100, expected 0 to 99");
  EXPECT_JSON_REFUSED(with(llama_json(), {{"eos_token_id", -1}}), "'eos_token_id' is -1, expected a token id");
  EXPECT_JSON_REFUSED(with(llama_json(), {{"eos_token_id", "x"}}), "'eos_token_id' is \"x\"");
}

TEST(JsonConfig, RefusesWhatItCannotCompute) {
  EXPECT_JSON_UNSUPPORTED(with(llama_json(), {{"model_type", "mamba"}}), "model_type 'mamba' is not supported (llama, mistral,");
  EXPECT_JSON_UNSUPPORTED(with(llama_json(), {{"hidden_act", "relu"}}), "'hidden_act' is 'relu', supported is 'silu'");
  EXPECT_JSON_UNSUPPORTED(with(llama_json(), {{"quantization_config", json::object{{"bits", 4}}}}), "'quantization_config'");
  EXPECT_JSON_REFUSED(with(llama_json(), {{"hidden_size", "64"}}), "'hidden_size' is \"64\", expected a non-negative integer");
  EXPECT_JSON_REFUSED(with(llama_json(), {{"hidden_size", 64.5}}), "'hidden_size' is 6.45E1");
  EXPECT_JSON_REFUSED(with(llama_json(), {{"hidden_size", nullptr}}), "'hidden_size' is missing");
  EXPECT_JSON_REFUSED(with(llama_json(), {{"head_dim", 1 << 30}}), "the head size is 1073741824");
  EXPECT_JSON_REFUSED(with(llama_json(), {{"rope_theta", 0}}), "'rope_theta' is 0");
  EXPECT_JSON_REFUSED(with(llama_json(), {{"tie_word_embeddings", 1}}), "'tie_word_embeddings' is 1, expected true or false");
  EXPECT_ERROR(model_config_from_json(R"({"a":1,"a":2})", "", "c"), ErrorCode::kInvalidFile, "c: key 'a' occurs twice");
  EXPECT_ERROR(model_config_from_json("[]", "", "c"), ErrorCode::kInvalidFile, "c: not an object");
  EXPECT_ERROR(model_config_from_json("", "", "c"), ErrorCode::kInvalidFile, "c: not valid JSON");
  EXPECT_ERROR(config_of(llama_json(), "[]"), ErrorCode::kInvalidFile, "(generation_config.json): not an object");
}

TEST(KvGroups, HaveEqualSizes) {
  const auto layouts = [](std::vector<int> windows) {
    ModelConfig config;
    config.num_layers = static_cast<int>(windows.size());
    config.layer_windows = std::move(windows);
    std::vector<std::pair<int, std::vector<int>>> groups;
    for (const KvGroupLayout& group : kv_group_layouts(config)) groups.emplace_back(group.window, group.layers);
    return groups;
  };
  using Layers = std::vector<int>;
  EXPECT_THAT(layouts({0, 0, 0}), ElementsAre(std::pair(0, Layers{0, 1, 2})));
  EXPECT_THAT(layouts({5, 5}), ElementsAre(std::pair(5, Layers{0, 1})));
  EXPECT_THAT(layouts({5, 0, 5, 5, 5, 0}),
              ElementsAre(std::pair(0, Layers{1, 5}), std::pair(5, Layers{0, 2}), std::pair(5, Layers{3, 4})));
  EXPECT_THAT(layouts({5, 5, 5, 0}),
              ElementsAre(std::pair(0, Layers{3}), std::pair(5, Layers{0}), std::pair(5, Layers{1}), std::pair(5, Layers{2})));
}

}  // namespace
}  // namespace quire
