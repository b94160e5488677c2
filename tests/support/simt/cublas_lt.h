// What tests say to the played cuBLASLt: which algorithms it proposes, and for which products each of them is valid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace simt {

struct MatmulAlgorithm {
  std::uint64_t least_columns = 1;  // of D: rows of what quire multiplies
  std::uint64_t most_columns = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t except_columns = 0;
  std::size_t workspace_bytes = 0;
  std::uint64_t large_workspace_columns = 0;  // for so many columns it wants more than any product has
  bool descending = false;                    // the order of its sums, so that two algorithms can be told apart by their bits
};

// The best first. Empty: one that takes every product (the state at the start of a test).
void set_matmul_algorithms(std::vector<MatmulAlgorithm> algorithms);

// Calls that ask which algorithms there are, or whether one takes a product.
std::int64_t num_matmul_questions();

}  // namespace simt
