// Simple quantisers, for models that tests make up: round to nearest with the scale of the largest value. Good enough to compute
// with, not to publish with.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/dtype.h"

namespace quire::test {

// The blocks of a weight type for `values`. REQUIRES: as many as a multiple of its block.
std::vector<std::byte> quantize(DType type, std::span<const float> values);

// What `quantize` keeps of the values.
std::vector<float> dequantize(DType type, std::span<const std::byte> blocks);

}  // namespace quire::test
