#include "model/activations.h"

#include "core/math.h"

namespace quire {
namespace {

constexpr std::int64_t kAlignment = 64;  // bytes

}  // namespace

// One buffer for all: first the sizes are added up, then the views are cut from it in the same order.
struct Activations::Piece {
  TensorView* view;
  DType dtype;
  std::int64_t rows, columns;

  std::int64_t padded_bytes() const { return round_up(row_bytes(dtype, rows * columns), kAlignment); }
};

std::vector<Activations::Piece> Activations::pieces(DType type, const ModelConfig& config, std::int64_t tokens,
                                                    std::int64_t logit_rows) {
  const std::int64_t q_size = std::int64_t{config.num_heads} * config.head_size;
  const std::int64_t kv_size = std::int64_t{config.num_kv_heads} * config.head_size;
  const auto table = [](const RopeConfig& rope) { return static_cast<std::int64_t>(rope.inv_freq.size()) * 2; };
  return {
      {&residual, type, tokens, config.hidden_size},
      {&normed, type, tokens, config.hidden_size},
      {&q, type, tokens, q_size},
      {&k, type, tokens, kv_size},
      {&v, type, tokens, kv_size},
      {&attended, type, tokens, q_size},
      {&gate, type, tokens, config.mlp_size},
      {&up, type, tokens, config.mlp_size},
      {&projected, type, tokens, config.hidden_size},
      {&cos_sin_full, DType::kF32, tokens, table(config.rope_full)},
      {&cos_sin_sliding, DType::kF32, tokens, table(config.rope_sliding)},
      {&head_input, type, logit_rows, config.hidden_size},
      {&logits, DType::kF32, logit_rows, config.vocab_size},
  };
}

std::int64_t Activations::num_bytes(DType activation_dtype, const ModelConfig& config, int max_tokens, int max_logit_rows) {
  std::int64_t bytes = 0;
  for (const Piece& piece : Activations().pieces(activation_dtype, config, max_tokens, max_logit_rows))
    bytes += piece.padded_bytes();
  return bytes;
}

Activations::Activations(Backend& backend, const ModelConfig& config, int max_tokens, int max_logit_rows) {
  const DType type = backend.activation_dtype();
  memory_ = backend.allocate(static_cast<std::size_t>(num_bytes(type, config, max_tokens, max_logit_rows)));
  auto* next = static_cast<std::byte*>(memory_.data());
  for (const Piece& piece : pieces(type, config, max_tokens, max_logit_rows)) {
    *piece.view = TensorView(next, piece.dtype, {piece.rows, piece.columns});
    next += piece.padded_bytes();
  }
}

}  // namespace quire
