// The oracle of the kernel tests: every op as straight loops in double over plain, unpaged arrays. Shares no code with the
// kernels, has no fast path and no order worth keeping.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops.h"

namespace quire::reference {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

Doubles rms_norm(const Floats& x, const Floats& weight, double eps);  // x [R, H], weight [H]

// x [T, heads, D], positions [T], inv_freq [rot / 2].
Doubles rope(const Floats& x, const std::vector<std::int32_t>& positions, const Floats& inv_freq, int heads, int head_size,
             double magnitude, RopeKind kind);

double silu(double x);
double gelu_tanh(double x);

// One sequence's attention: q [n, Hq, D] are the last n of num_positions; k, v [num_positions, Hkv, D].
struct AttentionInput {
  Floats q, k, v;
  int num_positions = 0;
  int num_heads = 0;     // Hq
  int num_kv_heads = 0;  // Hkv
  int head_size = 0;     // D
  double scale = 1.0;
  int window = 0;
  double softcap = 0.0;
};
Doubles attention(const AttentionInput& input);  // [n, Hq, D]

Doubles log_softmax(const Floats& logits);

// What each token is drawn with, after all parameters of `row`; 0: cannot be drawn. Sorts. Not for greedy rows.
Doubles sampling_distribution(const Floats& logits, const SampleRow& row);

}  // namespace quire::reference
