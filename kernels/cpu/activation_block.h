// ActivationBlock: 32 activations as 8-bit integers with one float scale, the other side of every product with quantised
// weights. The same in all variants of the kernels; how it is computed stands in docs/numerics.md, "Quantising activations".
#pragma once

#include <cstdint>

namespace quire::cpu {

inline constexpr int kBlock = 32;

struct ActivationBlock {
  float d;                   // x[i] is about d * q[i]
  float d_sum;               // d * float(q[0] + ... + q[31]), for weights with a minimum
  std::int16_t half_sum[2];  // q[0] + ... + q[15] and q[16] + ... + q[31], for weights with an offset
  std::int8_t q[kBlock];     // -127 to 127
};
static_assert(sizeof(ActivationBlock) == 44);

}  // namespace quire::cpu
