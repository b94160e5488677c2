// ModelConfig from Hugging Face's config.json.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <filesystem>

#include "model/gguf.h"
#include "model/model_config.h"
#include "tests/model/rope_powers.h"
#include "tests/support/expect_error.h"
#include "tests/support/tiny_config.h"
#include "tests/support/tiny_model.h"

namespace quire {
namespace {

namespace json = boost::json;
using test::powers;
using test::TinyModelSpec;
using ::testing::Each;
using ::testing::ElementsAre;

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
#define EXPECT_REFUSED(config, part) EXPECT_ERROR(config_of(config), ErrorCode::kInvalidFile, part)
#define EXPECT_UNSUPPORTED(config, part) EXPECT_ERROR(config_of(config), ErrorCode::kUnsupported, part)

TEST(HfConfig, DefaultsWhatIsAbsent) {
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

TEST(HfConfig, ReadsTheDefaultsOfGemma4B) {
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

TEST(HfConfig, KnowsWhoHasBiases) {
  EXPECT_FALSE(config_of(llama_json()).attention_bias);
  const ModelConfig llama = config_of(with(llama_json(), {{"attention_bias", true}, {"mlp_bias", true}}));
  EXPECT_TRUE(llama.attention_bias && llama.output_bias && llama.mlp_bias);
  const ModelConfig qwen2 = config_of(with(json_of("qwen2"), {{"num_key_value_heads", 4}}));
  EXPECT_TRUE(qwen2.attention_bias);
  EXPECT_FALSE(qwen2.output_bias);
  const ModelConfig qwen3 = config_of(with(json_of("qwen3"), {{"num_key_value_heads", 4}}));
  EXPECT_FALSE(qwen3.attention_bias || qwen3.output_bias);
}

TEST(HfConfig, ReadsWindows) {
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
  EXPECT_REFUSED(with(llama_json(), {{"layer_types", types}}), "'layer_types' is not a list of 6 types");
  EXPECT_REFUSED(with(with(llama_json(), {{"layer_types", types}}), {{"num_hidden_layers", 4}}), "there is no window");
  EXPECT_UNSUPPORTED(with(gemma, {{"layer_types", {"full_attention", "linear_attention", "x", "y"}}}), "\"linear_attention\"");
}

TEST(HfConfig, ReadsBothSpellingsOfRope) {
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
    EXPECT_UNSUPPORTED(with(llama_json(), {{"rope_scaling", {{"rope_type", kind}, {"factor", 2.0}}}}),
                       "RoPE scaling '" + std::string(kind) + "' is not supported");
  }
  EXPECT_REFUSED(with(llama_json(), {{"rope_scaling", {{"rope_type", "linear"}}}}), "'factor' is missing");
  EXPECT_UNSUPPORTED(with(llama_json(), {{"partial_rotary_factor", 0.5}}), "'partial_rotary_factor' is 0.5");
}

// Both formats carry Llama 3's scaling, each in its way: a formula there, a tensor here. Far positions tell them apart.
TEST(HfConfig, AgreesWithGgufOnScaledRope) {
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
TEST(HfConfig, ScalesRopeAsLlama31) {
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

TEST(HfConfig, UnitesEndTokens) {
  const auto config = with(llama_json(), {{"eos_token_id", 7}});
  EXPECT_THAT(config_of(config).end_token_ids, ElementsAre(7));
  EXPECT_THAT(config_of(config, R"({"eos_token_id":[8,7,9]})").end_token_ids, ElementsAre(7, 8, 9));
  EXPECT_THAT(config_of(with(llama_json(), {{"eos_token_id", nullptr}})).end_token_ids, ElementsAre());
  EXPECT_REFUSED(with(llama_json(), {{"eos_token_id", 100}}), "an end-of-text token id is 100, expected 0 to 99");
  EXPECT_REFUSED(with(llama_json(), {{"eos_token_id", -1}}), "'eos_token_id' is -1, expected a token id");
  EXPECT_REFUSED(with(llama_json(), {{"eos_token_id", "x"}}), "'eos_token_id' is \"x\"");
}

TEST(HfConfig, RefusesWhatItCannotCompute) {
  EXPECT_UNSUPPORTED(with(llama_json(), {{"model_type", "mamba"}}), "model_type 'mamba' is not supported (llama, mistral,");
  EXPECT_UNSUPPORTED(with(llama_json(), {{"hidden_act", "relu"}}), "'hidden_act' is 'relu', supported is 'silu'");
  EXPECT_UNSUPPORTED(with(llama_json(), {{"quantization_config", json::object{{"bits", 4}}}}), "'quantization_config'");
  EXPECT_REFUSED(with(llama_json(), {{"hidden_size", "64"}}), "'hidden_size' is \"64\", expected a non-negative integer");
  EXPECT_REFUSED(with(llama_json(), {{"hidden_size", 64.5}}), "'hidden_size' is 6.45E1");
  EXPECT_REFUSED(with(llama_json(), {{"hidden_size", nullptr}}), "'hidden_size' is missing");
  EXPECT_REFUSED(with(llama_json(), {{"head_dim", 1 << 30}}), "the head size is 1073741824");
  EXPECT_REFUSED(with(llama_json(), {{"rope_theta", 0}}), "'rope_theta' is 0");
  EXPECT_REFUSED(with(llama_json(), {{"tie_word_embeddings", 1}}), "'tie_word_embeddings' is 1, expected true or false");
  EXPECT_ERROR(model_config_from_json(R"({"a":1,"a":2})", "", "c"), ErrorCode::kInvalidFile, "c: key 'a' occurs twice");
  EXPECT_ERROR(model_config_from_json("[]", "", "c"), ErrorCode::kInvalidFile, "c: not an object");
  EXPECT_ERROR(model_config_from_json("", "", "c"), ErrorCode::kInvalidFile, "c: not valid JSON");
  EXPECT_ERROR(config_of(llama_json(), "[]"), ErrorCode::kInvalidFile, "(generation_config.json): not an object");
}

}  // namespace
}  // namespace quire
