// The two real models, where they are: what their files say, and that every tensor is found.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "model/weights.h"
#include "tests/support/memory_backend.h"

namespace quire {
namespace {

std::string model_path(const char* name) { return std::string(QUIRE_SOURCE_DIR) + "/models/" + name; }

#define SKIP_WITHOUT(path) \
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there"

TEST(RealModel, SmolLm2) {
  const std::string path = model_path("SmolLM2-135M-Instruct.Q4_1.gguf");
  SKIP_WITHOUT(path);
  test::MemoryBackend backend(true);
  const LoadedModel model = load_model(path, backend);
  const ModelConfig& c = model.config;
  EXPECT_EQ(c.family, "llama");
  EXPECT_EQ(c.num_layers, 30);
  EXPECT_EQ(c.hidden_size, 576);
  EXPECT_EQ(c.mlp_size, 1536);
  EXPECT_EQ(c.num_heads, 9);
  EXPECT_EQ(c.num_kv_heads, 3);
  EXPECT_EQ(c.head_size, 64);
  EXPECT_EQ(c.vocab_size, 49152);
  EXPECT_EQ(c.max_context, 8192);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_FALSE(c.attention_bias);
  EXPECT_EQ(c.attention_scale, 0.125f);
  EXPECT_EQ(c.embedding_scale, 1.0f);
  EXPECT_EQ(c.rope_full.kind, RopeKind::kInterleaved);
  EXPECT_EQ(c.rope_full.inv_freq.size(), 32u);
  EXPECT_FLOAT_EQ(c.rope_full.inv_freq[1], std::pow(1e5f, -2.0f / 64.0f));
  EXPECT_EQ(kv_group_layouts(c).size(), 1u);
  EXPECT_EQ(model.weights.embedding.dtype, DType::kQ8_0);
  EXPECT_EQ(model.weights.layers[29].down.describe(), "Q4_1 [576, 1536]");
  EXPECT_EQ(model.weights.head.data, model.weights.embedding.data);
  EXPECT_EQ(model.weights.layers[0].q_norm.data, nullptr);
  EXPECT_LT(backend.allocated_bytes(), 61u * (576 * 4 + 256)) << "matrices are read in place";
}

TEST(RealModel, Gemma3) {
  const std::string path = model_path("gemma-3-270m-q4_k_m.gguf");
  SKIP_WITHOUT(path);
  test::MemoryBackend backend(true);
  const LoadedModel model = load_model(path, backend);
  const ModelConfig& c = model.config;
  EXPECT_EQ(c.family, "gemma3");
  EXPECT_EQ(c.head_size, 256);
  EXPECT_EQ(c.num_kv_heads, 1);
  EXPECT_EQ(c.activation, Activation::kGeluTanh);
  EXPECT_EQ(c.attention_scale, 1.0f / 16.0f);
  EXPECT_EQ(c.embedding_scale, std::sqrt(640.0f));
  EXPECT_EQ(c.rope_full.kind, RopeKind::kHalfSplit);
  EXPECT_FLOAT_EQ(c.rope_full.inv_freq[127], std::pow(1e6f, -254.0f / 256.0f));
  EXPECT_FLOAT_EQ(c.rope_sliding.inv_freq[127], std::pow(1e4f, -254.0f / 256.0f));
  for (int i = 0; i < 18; ++i) EXPECT_EQ(c.layer_windows[i], (i + 1) % 6 == 0 ? 0 : 512) << i;
  const auto groups = kv_group_layouts(c);
  ASSERT_EQ(groups.size(), 6u);
  EXPECT_EQ(groups[0].window, 0);
  EXPECT_EQ(groups[0].layers, (std::vector<int>{5, 11, 17}));
  EXPECT_EQ(groups[1].window, 512);
  EXPECT_EQ(groups[1].layers, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(model.weights.layers[3].post_mlp_norm.describe(), "F32 [640]");
  EXPECT_EQ(model.weights.layers[3].k_norm.describe(), "F32 [256]");
}

}  // namespace
}  // namespace quire
