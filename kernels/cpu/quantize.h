// Activations to 8-bit blocks.
#pragma once

#include "kernels/cpu/activation_block.h"
#include "kernels/cpu/isa.h"

namespace quire::cpu::QUIRE_ISA {

// x [num_blocks * 32] -> out [num_blocks]. A block with an infinity or a NaN gets the scale NaN, so that its row of results
// becomes NaN.
void quantize_row(const float* x, std::int64_t num_blocks, ActivationBlock* out);

}  // namespace quire::cpu::QUIRE_ISA
