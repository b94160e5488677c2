// Quantised weights in rows, as files have them, times 8-bit activations. Where speed matters weights are in panels
// (matmul_panels.cc): here one loop serves every instruction set.
#include "kernels/cpu/quantized_dot.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

template <DType kType>
void multiply(const Tile& t) {
  multiply_row_by_row<kType>(
      t, [&](int i, std::int64_t b, WeightBlock& w) { unpack_block<kType>(t.weights + i * t.weight_stride, b, w); });
}

}  // namespace

void multiply_quantized(DType weight_type, const Tile& tile) {
  for_quantized_type(weight_type, [&]<DType kType>() { multiply<kType>(tile); });
}

}  // namespace quire::cpu::QUIRE_ISA
