// Activations: the intermediates of one forward pass, allocated once for the largest step. Each buffer's rows [0, T) are used.
#pragma once

#include <vector>

#include "backend/backend.h"
#include "model/model_config.h"

namespace quire {

struct Activations {
  Activations(Backend& backend, const ModelConfig& config, int max_tokens, int max_logit_rows);
  // What the constructor would allocate.
  static std::int64_t num_bytes(DType activation_dtype, const ModelConfig& config, int max_tokens, int max_logit_rows);

  TensorView residual;         // [T, H] what every layer adds to
  TensorView normed;           // [T, H] input of a projection; after the last layer: of the head
  TensorView q;                // [T, Hq * D]
  TensorView k;                // [T, Hkv * D]
  TensorView v;                // [T, Hkv * D]
  TensorView attended;         // [T, Hq * D]
  TensorView gate;             // [T, F]
  TensorView up;               // [T, F]
  TensorView projected;        // [T, H] output of attention and of the MLP
  TensorView cos_sin_full;     // [T, rot / 2, 2] F32
  TensorView cos_sin_sliding;  // the same for sliding layers
  TensorView head_input;       // [R, H]
  TensorView logits;           // [R, V] F32

 private:
  struct Piece;
  Activations() = default;
  std::vector<Piece> pieces(DType type, const ModelConfig& config, std::int64_t tokens, std::int64_t logit_rows);

  DeviceBuffer memory_;
};

}  // namespace quire
