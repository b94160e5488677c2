// Matmul: the dense products of a CUDA backend, by cuBLASLt. out[R, M] = x[R, K] weight[M, K]^T + bias, elements BF16 or F16
// (bias too), out of the same type or F32, accumulation in float. Weights are read as they lie, never transposed. prepare()
// chooses algorithms for a product and checks them for so many numbers of rows that every other is the sum of two of these, so
// that calls only look them up. Deterministic: one algorithm for all numbers of rows, without splitting the reduction, so that a
// row's bits depend on that row alone; Error(kUnsupported) where cuBLASLt has none. Owns cuBLASLt's handle and what it was told.
// One stream at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/cuda/stream.h"
#include "kernels/ops.h"

namespace quire::cuda {

class Matmul {
 public:
  static constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;  // what NVIDIA advises for Hopper

  // `workspace`: kWorkspaceBytes of device memory, 256-byte aligned, that outlives this.
  Matmul(void* workspace, bool deterministic);
  ~Matmul();
  Matmul(const Matmul&) = delete;

  // Chooses for products of these matrices, aligned and strided as they are, with `least_rows` rows of x up to all of them.
  // Later calls with such numbers of rows ask cuBLASLt nothing but the product.
  void prepare(const MatmulArgs& largest, std::int64_t least_rows = 1);

  // What was not prepared is prepared on the way: for the rows that it has; deterministic: for all up to 8,192 at least.
  void operator()(const MatmulArgs& args, Stream stream);

 private:
  struct Library;
  struct Span;
  void choose(const TensorView& x, const Projection& projection, std::int64_t least_rows, std::int64_t most_rows);
  Span next_span(const TensorView& x, const Projection& projection, std::int64_t first, std::int64_t last) const;
  Span deterministic_span(const TensorView& x, const Projection& projection, std::int64_t first, std::int64_t last,
                          const Span* chosen) const;
  const Span* find(const TensorView& x, const Projection& projection) const;
  void project(const TensorView& x, const Projection& projection, Stream stream);

  void* workspace_;
  bool deterministic_;
  std::unique_ptr<Library> library_;
};

}  // namespace quire::cuda
