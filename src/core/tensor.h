// TensorView: a typed, shaped view of memory on some device. Trivially copyable, owns nothing, up to four dimensions,
// row-major; only the outermost stride is free, so a slice of rows or a column block of a fused matrix's rows is a view.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/dtype.h"

namespace quire {

// How the rows of a matrix lie in memory.
enum class Layout : std::uint8_t {
  kRows,    // one after the other
  kPanels,  // quantised weights on the CPU: kPanelRows of them side by side, kernels/cpu/panel.h
};
inline constexpr int kPanelRows = 16;

struct TensorView {
  static constexpr int kMaxRank = 4;

  void* data = nullptr;
  DType dtype = DType::kF32;
  Layout layout = Layout::kRows;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::int64_t outer_stride = 0;  // elements from one index of the outermost dimension to the next

  TensorView() = default;
  // A dense view. For a quantised type the innermost dimension is a multiple of its block.
  TensorView(void* data, DType dtype, std::initializer_list<std::int64_t> dims);

  std::int64_t dim(int i) const { return shape[static_cast<std::size_t>(i)]; }
  std::int64_t num_elements() const;
  std::int64_t num_bytes() const { return row_bytes(dtype, num_elements()); }  // of the elements, gaps not counted
  bool is_dense() const;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
  // Pointer to index i of the outermost dimension; in panels of a multiple of kPanelRows.
  void* row(std::int64_t i) const { return static_cast<std::byte*>(data) + i * row_bytes(dtype, outer_stride); }
  template <typename T>
  T* row_as(std::int64_t i) const {
    return static_cast<T*>(row(i));
  }

  // Rows [begin, begin + count) of the outermost dimension; in panels from a multiple of kPanelRows on.
  TensorView rows(std::int64_t begin, std::int64_t count) const;
  // The same dense memory under another shape with equally many elements.
  TensorView reshaped(std::initializer_list<std::int64_t> dims) const;

  std::string describe() const;  // "F32 [4, 576]"
};

}  // namespace quire
