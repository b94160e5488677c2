// Activations to 8-bit blocks.
#pragma once

#include "kernels/cpu/activation_block.h"
#include "kernels/cpu/isa.h"

namespace quire::cpu::QUIRE_ISA {

// x [num_blocks * 32] -> out [num_blocks]. A block with an infinity or a NaN gets the scale NaN, so that its row of results
// becomes NaN.
void quantize_row(const float* x, std::int64_t num_blocks, ActivationBlock* out);

// The same as two rows: `first` as above, `second` from what it leaves of x, x[i] - d * q[i] by one fma.
void quantize_row_in_two_terms(const float* x, std::int64_t num_blocks, ActivationBlock* first, ActivationBlock* second);

}  // namespace quire::cpu::QUIRE_ISA
