// Rows of every weight type to float: the formulas of the file formats, plain and scalar. For norms and biases at load, for tests
// and for the reference the kernels are compared with; the kernels have their own.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace quire {

// dst [n] F32 from the n elements at src, which may be unaligned. REQUIRES: n a multiple of block_elements(type); a float or
// quantised type. One float operation per sign of the formula, in its order: results are equal bit for bit everywhere.
void dequantize_row(DType type, const void* src, float* dst, std::int64_t n);

}  // namespace quire
