#include "model/model_config.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "core/check.h"

namespace quire {
namespace {

constexpr int kMaxLayers = 1024;
constexpr int kMaxHeads = 4096;
constexpr int kMaxHeadSize = 1024;
constexpr int kMaxWidth = 1 << 20;  // hidden and MLP sizes
constexpr int kMaxVocab = 1 << 24;

void check_range(int value, int low, int high, const char* name, const std::string& file) {
  if (value < low || value > high) {
    fail(ErrorCode::kInvalidFile, "{}: {} is {}, expected {} to {}", file, name, value, low, high);
  }
}

void check_positive(float value, const char* name, const std::string& file) {
  if (!(std::isfinite(value) && value > 0.0f))
    fail(ErrorCode::kInvalidFile, "{}: {} is {}, expected a positive number", file, name, value);
}

void check_rope(const RopeConfig& rope, int head_size, const std::string& file) {
  if (rope.inv_freq.empty() || rope.inv_freq.size() * 2 > static_cast<std::size_t>(head_size)) {
    fail(ErrorCode::kInvalidFile, "{}: RoPE rotates {} dimensions of a head of {}", file, rope.inv_freq.size() * 2, head_size);
  }
  for (const float frequency : rope.inv_freq) check_positive(frequency, "a RoPE frequency", file);
  check_positive(rope.magnitude, "the RoPE attention factor", file);
}

}  // namespace

void check_model_sizes(const ModelConfig& c, const std::string& file) {
  check_range(c.num_layers, 1, kMaxLayers, "the number of layers", file);
  check_range(c.hidden_size, 1, kMaxWidth, "the hidden size", file);
  check_range(c.mlp_size, 1, kMaxWidth, "the MLP size", file);
  check_range(c.num_heads, 1, kMaxHeads, "the number of heads", file);
  check_range(c.num_kv_heads, 1, c.num_heads, "the number of KV heads", file);
  if (c.num_heads % c.num_kv_heads != 0) {
    fail(ErrorCode::kInvalidFile, "{}: {} KV heads do not divide {} heads", file, c.num_kv_heads, c.num_heads);
  }
  check_range(c.head_size, 2, kMaxHeadSize, "the head size", file);
  if (c.head_size % 2 != 0) fail(ErrorCode::kInvalidFile, "{}: the head size is {}, expected an even number", file, c.head_size);
  check_range(c.vocab_size, 1, kMaxVocab, "the vocabulary size", file);
  check_range(c.max_context, 1, std::numeric_limits<int>::max(), "the context length", file);
}

void check_model_config(const ModelConfig& c, const std::string& file) {
  check_model_sizes(c, file);
  check_positive(c.rms_eps, "the RMS epsilon", file);
  check_positive(c.embedding_scale, "the embedding scale", file);
  check_positive(c.attention_scale, "the attention scale", file);
  if (c.attention_softcap != 0.0f) check_positive(c.attention_softcap, "the attention soft-cap", file);
  if (c.final_softcap != 0.0f) check_positive(c.final_softcap, "the final soft-cap", file);
  QUIRE_CHECK(c.layer_windows.size() == static_cast<std::size_t>(c.num_layers));
  for (const int window : c.layer_windows) check_range(window, 0, std::numeric_limits<int>::max(), "a layer's window", file);
  check_rope(c.rope_full, c.head_size, file);
  if (c.has_sliding_layers()) check_rope(c.rope_sliding, c.head_size, file);
  for (const std::int32_t id : c.end_token_ids) check_range(id, 0, c.vocab_size - 1, "an end-of-text token id", file);
}

std::vector<KvGroupLayout> kv_group_layouts(const ModelConfig& config) {
  std::vector<int> full, sliding;
  int window = 0;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const int layer_window = config.layer_windows[static_cast<std::size_t>(layer)];
    (layer_window > 0 ? sliding : full).push_back(layer);
    if (layer_window == 0) continue;
    QUIRE_CHECK_MSG(window == 0 || window == layer_window, "windows {} and {}", window, layer_window);
    window = layer_window;
  }
  const std::size_t size = std::gcd(full.size(), sliding.size());
  std::vector<KvGroupLayout> groups;
  const auto cut = [&](const std::vector<int>& layers, int group_window) {
    for (auto begin = layers.begin(); begin != layers.end(); begin += static_cast<std::ptrdiff_t>(size)) {
      groups.push_back({group_window, std::vector<int>(begin, begin + static_cast<std::ptrdiff_t>(size))});
    }
  };
  cut(full, 0);
  cut(sliding, window);
  return groups;
}

}  // namespace quire
