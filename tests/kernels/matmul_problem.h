// A matrix product for the tests: random inputs, a run that checks what it must not touch, and the expected values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/kernels.h"

namespace quire::test {

// Scratch of exactly the size asked for, so that AddressSanitizer sees a byte too many.
class AlignedBuffer {
 public:
  explicit AlignedBuffer(std::size_t size) : data_(::operator new (size, std::align_val_t{64})) {}
  ~AlignedBuffer() { ::operator delete (data_, std::align_val_t{64}); }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  void* data() const { return data_; }

 private:
  void* data_;
};

struct MatmulProblem {
  MatmulProblem(DType type, std::int64_t outer, std::int64_t inner, std::int64_t rows, bool with_bias, unsigned seed = 1);

  // Result [R, M], row after row. Inside, rows of `out` and `x` are further apart than they are long, and nothing is written
  // between them.
  std::vector<float> run(const cpu::KernelTable& kernels, int threads = 1) const;
  // The same with row r of x alone.
  std::vector<float> run_row(const cpu::KernelTable& kernels, std::int64_t r) const;

  const std::byte* weight_row(std::int64_t m) const { return weights.data() + m * row_bytes(type, inner); }

  DType type;
  std::int64_t outer, inner, rows;   // M, K, R
  std::vector<std::byte> weights;    // [M, K]
  std::vector<float> x;              // [R, K]
  std::vector<float> bias;           // [M] or empty
  int terms = 1;                     // MatmulArgs::activation_terms
  std::size_t misalignment = 0;      // bytes from a 64-byte boundary to the weights; even
  bool panels = is_quantized(type);  // the weights as the CPU backend keeps them, else as files do
};

// The value of out[r, m] in double precision, from activations rounded to 8 bits as the kernels do it (float weights: as they
// are); and bounds of the error of a float result against it, and against activations that were never rounded.
struct Expected {
  double value = 0.0;
  double bound = 0.0;
  double unrounded_value = 0.0;
  double unrounded_bound = 0.0;
};
Expected expected(const MatmulProblem& problem, std::int64_t r, std::int64_t m);

std::vector<const cpu::KernelTable*> all_kernels();  // that this machine has

}  // namespace quire::test
