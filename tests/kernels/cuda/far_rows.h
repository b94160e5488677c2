// FarRows: a tensor of three rows in sparse device memory, its second row beyond 2^31 elements and its third beyond 2^32. For
// tests that a kernel's offsets have 64 bits: what it makes of far rows are the bits of the same rows nearby.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/tensor.h"
#include "tests/support/simt/device_memory.h"

namespace quire::testing {

class FarRows {
 public:
  static constexpr std::int64_t kStride = (std::int64_t{1} << 31) + 8;  // elements

  // A copy of `near` [3, ..].
  FarRows(const TensorView& near)
      : memory_(static_cast<std::size_t>((2 * kStride + near.num_elements() / 3) * block_bytes(near.dtype)),
                simt::DeviceMemory::Fill::kSparse),
        view_(near) {
    view_.data = memory_.data();
    view_.outer_stride = kStride;
    for (int r = 0; r < 3; ++r) std::memcpy(view_.row(r), near.row(r), row_size());
  }
  operator const TensorView&() const { return view_; }  // NOLINT: a tensor is its view
  bool equals(const TensorView& near) const {
    for (int r = 0; r < 3; ++r) {
      if (std::memcmp(view_.row(r), near.row(r), row_size()) != 0) return false;
    }
    return true;
  }

 private:
  std::size_t row_size() const { return static_cast<std::size_t>(view_.num_elements() / 3 * block_bytes(view_.dtype)); }

  simt::DeviceBuffer<std::uint8_t> memory_;
  TensorView view_;
};

}  // namespace quire::testing
