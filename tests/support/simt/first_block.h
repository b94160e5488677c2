// FirstBlock: while it lives, launches leave out the blocks whose x is smaller. So a test of what lies far into a grid, beyond
// 2^32 elements, need not wait for all that comes before. Without effect on a GPU.
#pragma once

#include <cstdint>

namespace simt {

class FirstBlock {
 public:
  explicit FirstBlock(std::int64_t x) { value() = static_cast<unsigned>(x); }
  ~FirstBlock() { value() = 0; }
  FirstBlock(const FirstBlock&) = delete;
  FirstBlock& operator=(const FirstBlock&) = delete;

  static unsigned& value() {
    static unsigned x = 0;
    return x;
  }
};

}  // namespace simt
