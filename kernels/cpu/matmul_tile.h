// A piece of a matrix product: up to sixteen rows of weights times some rows of activations. matmul.cc cuts a call into tiles;
// the functions here compute one, by the orders of docs/numerics.md, on one thread.
#pragma once

#include "core/tensor.h"
#include "kernels/cpu/activation_block.h"
#include "kernels/cpu/isa.h"

namespace quire::cpu::QUIRE_ISA {

inline constexpr int kTileWeights = 16;  // a group of panels
// Most rows of activations in a tile. Quantised weights are unpacked once a tile, so more rows cost less; those of floats fill
// the second cache sooner.
inline constexpr int kTileRows = 128;
inline constexpr int kFloatTileRows = 64;

// out[r * out_stride + i] = x[r] . weight[i] + bias[i] for r < num_rows, i < num_weights.
struct Tile {
  const std::uint8_t* weights = nullptr;
  std::int64_t weight_stride = 0;           // bytes from one row of weights to the next; not in panels
  int num_weights = 0;                      // 1 to kTileWeights; multiply_panels: all of them
  std::int64_t inner = 0;                   // K
  const ActivationBlock* blocks = nullptr;  // [num_rows, K / 32], quantised weights
  const float* x = nullptr;                 // [num_rows, K] with stride x_stride, float weights
  std::int64_t x_stride = 0;
  int num_rows = 0;             // 1 to kTileRows; of float weights to kFloatTileRows
  const float* bias = nullptr;  // [num_weights] or nullptr
  float* out = nullptr;
  std::int64_t out_stride = 0;
};

void multiply_float(DType weight_type, const Tile& tile);
void multiply_quantized(DType weight_type, const Tile& tile);  // weights in rows
void multiply_panels(DType weight_type, const Tile& tile);     // a group of panels
#if QUIRE_ISA_AVX512
void multiply_panels_amx(DType weight_type, const Tile& tile);  // the same on the tiles of AMX
#endif

}  // namespace quire::cpu::QUIRE_ISA
