// What RoPE's frequencies are by their definition: the oracle of the config tests.
#pragma once

#include <cmath>
#include <vector>

namespace quire::test {

// base^(-2 i / dims) / divisor for i < dims / 2, in double, rounded once.
inline std::vector<float> powers(double base, int dims, double divisor = 1.0) {
  std::vector<float> values;
  for (int i = 0; i < dims / 2; ++i) values.push_back(static_cast<float>(std::pow(base, -2.0 * i / dims) / divisor));
  return values;
}

}  // namespace quire::test
