#include "model/activations.h"

#include <vector>

#include "core/math.h"

namespace quire {
namespace {

// One buffer for all: first the sizes are added up, then the views are cut from it in the same order.
struct Piece {
  TensorView* view;
  DType dtype;
  std::int64_t rows, columns;
};

constexpr std::int64_t kAlignment = 64;  // bytes

std::int64_t padded_bytes(const Piece& piece) { return round_up(row_bytes(piece.dtype, piece.rows * piece.columns), kAlignment); }

}  // namespace

Activations::Activations(Backend& backend, const ModelConfig& config, int max_tokens, int max_logit_rows) {
  const DType type = backend.activation_dtype();
  const std::int64_t tokens = max_tokens;
  const std::int64_t q_size = std::int64_t{config.num_heads} * config.head_size;
  const std::int64_t kv_size = std::int64_t{config.num_kv_heads} * config.head_size;
  const auto table = [](const RopeConfig& rope) { return static_cast<std::int64_t>(rope.inv_freq.size()) * 2; };
  const std::vector<Piece> pieces = {
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
      {&head_input, type, max_logit_rows, config.hidden_size},
      {&logits, DType::kF32, max_logit_rows, config.vocab_size},
  };
  std::int64_t bytes = 0;
  for (const Piece& piece : pieces) bytes += padded_bytes(piece);
  memory_ = backend.allocate(static_cast<std::size_t>(bytes));
  auto* next = static_cast<std::byte*>(memory_.data());
  for (const Piece& piece : pieces) {
    *piece.view = TensorView(next, piece.dtype, {piece.rows, piece.columns});
    next += padded_bytes(piece);
  }
}

}  // namespace quire
