// Matmul: the dense products of a CUDA backend, by cuBLASLt. out[R, M] = x[R, K] weight[M, K]^T + bias, elements BF16 or F16
// (bias too), out of the same type or F32, accumulation in float. Weights are read as they lie, never transposed. An algorithm is
// chosen once for each shape and bucket of rows, and checked once for each number of rows that it is used with. Deterministic:
// one for all numbers of rows, without splitting the reduction, so that a row's bits depend on that row alone;
// Error(kUnsupported) where cuBLASLt has none. Owns cuBLASLt's handle and what it was told. One stream at a time.
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

  // Rows of x at most, from now on: what the algorithms of a deterministic mode must be able to take.
  void expect_rows(std::int64_t most) { most_rows_ = most; }

  void operator()(const MatmulArgs& args, Stream stream);

 private:
  struct Library;
  struct Choice;
  Choice& choice(const TensorView& x, const Projection& projection, std::int64_t rows);
  void project(const TensorView& x, const Projection& projection, Stream stream);

  void* workspace_;
  bool deterministic_;
  std::int64_t most_rows_ = 8192;
  std::unique_ptr<Library> library_;
};

}  // namespace quire::cuda
