// What every launcher of this folder begins with: arguments checked by name, element types chosen, grids over rows of chunks.
// Host code only.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "kernels/cuda/check.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vector_io.cuh"

namespace quire::cuda {

// Refuses `value` by its name unless `holds`.
inline void require(bool holds, const char* op, const char* field, const TensorView& value, const char* rule) {
  if (!holds) refuse(op, field, value, rule);
}
inline void require(bool holds, const char* op, const char* field, std::int64_t value, const char* rule) {
  if (!holds) refuse(op, field, value, rule);
}

// Of these dimensions, of type `dtype`, with a row of at least its own width. A vector is dense.
inline bool is_shaped(const TensorView& view, DType dtype, std::initializer_list<std::int64_t> dims) {
  if (view.dtype != dtype || view.rank != static_cast<int>(dims.size())) return false;
  std::int64_t row = 1;
  for (int i = 0; i < view.rank; ++i) {
    if (view.dim(i) != dims.begin()[i]) return false;
    if (i > 0) row *= view.dim(i);
  }
  return view.rank == 1 ? view.outer_stride == 1 || view.dim(0) <= 1 : view.outer_stride >= row || view.dim(0) <= 1;
}

inline bool is_activation(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

// Calls f.operator()<T>() with T of the activations' type. REQUIRES: is_activation(dtype), which the caller has checked by name.
template <typename Function>
void dispatch_activation(DType dtype, Function&& f) {
  if (dtype == DType::kBF16) {
    f.template operator()<BFloat16>();
  } else {
    f.template operator()<Half>();
  }
}

// The same with F32 as the third. REQUIRES: one of the three.
template <typename Function>
void dispatch_float(DType dtype, Function&& f) {
  if (dtype == DType::kF32) {
    f.template operator()<float>();
  } else {
    dispatch_activation(dtype, f);
  }
}

constexpr std::int64_t round_up_to(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Blocks for `rows` rows of `pieces` pieces of work each, a thread for a piece; the kernel finds its own with piece_of_row().
inline LaunchShape row_pieces_shape(std::int64_t rows, std::int64_t pieces) {
  constexpr std::int64_t kMaxThreads = 256;
  const std::int64_t whole = round_up_to(pieces > 0 ? pieces : 1, 32);
  const std::int64_t threads = whole < kMaxThreads ? whole : kMaxThreads;
  const std::int64_t blocks = pieces > 0 ? rows * ((pieces + threads - 1) / threads) : 0;
  return {.grid = dim3(grid_x(blocks)), .block = dim3(static_cast<unsigned>(threads))};
}

}  // namespace quire::cuda
