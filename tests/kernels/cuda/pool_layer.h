// One layer of a paged pool in device memory, for the tests of the kernels that write it.
#pragma once

#include <algorithm>

#include "tests/kernels/cuda/device_tensor.h"

namespace quire::testing {

// The layer's keys of a block lie before its values, other layers' between: nothing but the slots asked for may change.
class PoolLayer {
 public:
  PoolLayer(DType dtype, int num_blocks, int block_size, int heads, int head_size)
      : layer_values_(std::int64_t{heads} * block_size * head_size), pool_(dtype, {num_blocks, 3 * layer_values_}) {
    pool_.fill(std::vector<float>(static_cast<std::size_t>(num_blocks * 3 * layer_values_), kUnwritten));
    auto* base = static_cast<char*>(pool_.view().data);
    const std::int64_t layer_bytes = row_bytes(dtype, layer_values_);
    layer_ = {base, base + 2 * layer_bytes, dtype, 3 * layer_values_, block_size, heads, head_size};
  }

  const KvLayer& layer() const { return layer_; }
  std::vector<std::uint8_t> bytes() const { return pool_.bytes(); }

  // What the pool holds once rows of k and v [T, Hkv, D] stand in their slots.
  std::vector<float> expected(const std::vector<float>& k, const std::vector<float>& v,
                              const std::vector<std::int64_t>& slots) const {
    std::vector<float> all(static_cast<std::size_t>(pool_.view().num_elements()), kUnwritten);
    const std::int64_t row = std::int64_t{layer_.num_heads} * layer_.head_size;
    for (std::size_t t = 0; t < slots.size(); ++t) {
      if (slots[t] < 0) continue;
      for (std::int64_t i = 0; i < row; ++i) {
        const std::int64_t head = i / layer_.head_size, d = i % layer_.head_size;
        const std::int64_t place = slots[t] / layer_.block_size * layer_.block_stride +
                                   (head * layer_.block_size + slots[t] % layer_.block_size) * layer_.head_size + d;
        all[place] = k[t * row + i];
        all[place + 2 * layer_values_] = v[t * row + i];
      }
    }
    return rounded(layer_.dtype, all);
  }
  std::vector<float> floats() const { return pool_.floats(); }

 private:
  static constexpr float kUnwritten = -77.0f;
  std::int64_t layer_values_;
  DeviceTensor pool_;
  KvLayer layer_;
};

}  // namespace quire::testing
