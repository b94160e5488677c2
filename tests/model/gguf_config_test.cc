// ModelConfig from GGUF metadata.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>

#include "model/gguf.h"
#include "model/model_config.h"
#include "tests/model/rope_powers.h"
#include "tests/support/expect_error.h"
#include "tests/support/file_writers.h"

namespace quire {
namespace {

using test::GgufWriter;
using test::powers;
using ::testing::Each;
using ::testing::ElementsAre;

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

}  // namespace
}  // namespace quire
