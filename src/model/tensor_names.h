// Which tensors a model has: their names in either format, their shapes, and where in Weights they go. The one table of names.
#pragma once

#include <string>
#include <vector>

#include "model/weights.h"

namespace quire {

enum class Naming { kGguf, kHuggingFace };  // "blk.0.attn_q.weight", "layers.0.self_attn.q_proj.weight"

struct ExpectedTensor {
  std::string name;
  std::int64_t rows = 0;
  std::int64_t columns = 0;  // 0: a vector of `rows`
  TensorView* place = nullptr;
  bool is_vector() const { return columns == 0; }
  bool is_norm = false;  // else a bias, or a matrix
};

// Exactly the tensors that `config` implies, each once; places are in `weights`, whose layers are resized.
std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config, Naming naming, Weights& weights);

}  // namespace quire
