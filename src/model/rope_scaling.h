// RoPE scaling: from what a model file declares to the table of inverse frequencies that the kernels use. Computed in double,
// rounded to float once.
#pragma once

#include <optional>

#include "model/model_config.h"

namespace quire {

struct RopeScaling {
  enum class Method { kNone, kLinear, kLlama3, kYarn };
  Method method = Method::kNone;
  double factor = 1.0;
  double original_context = 0.0;  // tokens: llama3, yarn
  double low_freq_factor = 1.0;   // llama3
  double high_freq_factor = 4.0;
  double beta_fast = 32.0;  // yarn
  double beta_slow = 1.0;
  bool truncate = true;    // yarn: whole numbers for the ends of the ramp
  double magnitude = 1.0;  // yarn: multiplies cos and sin
};

// g(mscale) of Peng et al. 2023 (YaRN), arXiv:2309.00071, eq. 22 with a multiplier: 0.1 * mscale * ln(factor) + 1.
double yarn_magnitude(double factor, double mscale = 1.0);

// REQUIRES: rotary_dims even and positive, base and the fields of `scaling` finite and positive (check_rope_scaling).
RopeConfig make_rope(int rotary_dims, double base, const RopeScaling& scaling, RopeKind kind);

// Throws Error(kInvalidFile) naming `file` unless the method's fields can be computed with.
void check_rope_scaling(const RopeScaling& scaling, const std::string& file);

}  // namespace quire
