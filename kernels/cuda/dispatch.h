// What the attention kernels are compiled for, and the way from a run-time head size to a template argument:
// dispatch_head_size(size, body) calls body<kHeadSize>(). The lists stand here and nowhere else; launchers refuse by them, with
// supports_*(), before they dispatch. Host code.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace quire::cuda {

constexpr bool supports_float(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }
constexpr bool supports_head_size(std::int64_t size) {
  return size == 64 || size == 80 || size == 96 || size == 128 || size == 256;
}

// REQUIRES: supports_head_size(size).
template <typename Body>
void dispatch_head_size(std::int64_t size, const Body& body) {
  switch (size) {
    case 64:
      return body.template operator()<64>();
    case 80:
      return body.template operator()<80>();
    case 96:
      return body.template operator()<96>();
    case 128:
      return body.template operator()<128>();
    default:
      return body.template operator()<256>();
  }
}

}  // namespace quire::cuda
