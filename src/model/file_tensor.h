// FileTensor: a tensor as a model file stores it. Both readers hand out these; the bytes stay in the mapped file and may be
// unaligned for their type.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/dtype.h"
#include "core/tensor.h"

namespace quire {

struct FileTensor {
  std::string name;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<std::int64_t, TensorView::kMaxRank> shape{};  // row-major, outermost first, whatever the file's own order
  std::span<const std::byte> data;                         // exactly the tensor's bytes

  std::int64_t dim(int i) const { return shape[static_cast<std::size_t>(i)]; }
  std::int64_t num_elements() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dim(i);
    return n;
  }
  std::string describe() const;  // "'blk.0.attn_q.weight' Q4_K [1024, 640]"
};

}  // namespace quire
