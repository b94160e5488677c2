#include "core/tensor.h"

#include <fmt/ranges.h>

#include "core/check.h"

namespace quire {

TensorView::TensorView(void* data_in, DType dtype_in, std::initializer_list<std::int64_t> dims)
    : data(data_in), dtype(dtype_in), rank(static_cast<int>(dims.size())) {
  QUIRE_CHECK_MSG(rank >= 1 && rank <= kMaxRank, "rank {}", rank);
  std::size_t i = 0;
  for (const std::int64_t d : dims) {
    QUIRE_CHECK_MSG(d >= 0, "dimension {} is {}", i, d);
    shape[i++] = d;
  }
  outer_stride = 1;
  for (int k = 1; k < rank; ++k) outer_stride *= dim(k);
}

std::int64_t TensorView::num_elements() const {
  std::int64_t n = rank == 0 ? 0 : 1;
  for (int i = 0; i < rank; ++i) n *= dim(i);
  return n;
}

bool TensorView::is_dense() const {
  std::int64_t inner = 1;
  for (int k = 1; k < rank; ++k) inner *= dim(k);
  return dim(0) <= 1 || outer_stride == inner;
}

TensorView TensorView::rows(std::int64_t begin, std::int64_t count) const {
  QUIRE_CHECK_MSG(begin >= 0 && count >= 0 && begin + count <= dim(0), "rows [{}, {}) of {}", begin, begin + count, dim(0));
  QUIRE_CHECK_MSG(layout == Layout::kRows || begin % kPanelRows == 0, "row {} of {}", begin, describe());
  TensorView view = *this;
  view.data = row(begin);
  view.shape[0] = count;
  return view;
}

TensorView TensorView::reshaped(std::initializer_list<std::int64_t> dims) const {
  QUIRE_CHECK(is_dense());
  const TensorView view(data, dtype, dims);
  QUIRE_CHECK_MSG(view.num_elements() == num_elements(), "{} as {}", describe(), view.describe());
  return view;
}

std::string TensorView::describe() const {
  return fmt::format("{} [{}]{}", to_string(dtype), fmt::join(shape.begin(), shape.begin() + rank, ", "),
                     layout == Layout::kPanels ? " in panels" : "");
}

}  // namespace quire
