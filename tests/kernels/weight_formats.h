// Weights of every type for the tests of the kernels: random ones, and their values in double precision, decoded from the
// format's description by code that shares nothing with the kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "core/dtype.h"

namespace quire::test {

inline constexpr DType kWeightTypes[]{DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
                                      DType::kQ5_1, DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

// Byte positions of the 16-bit floats in a block: scale, then minimum if there is one.
std::vector<std::size_t> scale_positions(DType type);

// Random bits, with scales of sensible size: weights come out below about 4.
std::vector<std::byte> random_weights(DType type, std::int64_t elements, std::mt19937& random);

// One value, exactly. The scales of the K formats are rounded to float as docs/numerics.md says: d * scale, dmin * minimum.
double weight_value(DType type, const std::byte* row, std::int64_t k);

}  // namespace quire::test
