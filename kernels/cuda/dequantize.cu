// Matrices of GGUF's quantised types to BF16 or F16, once, at load: the same float as on the CPU, then rounded to nearest even.
// A thread writes one chunk of eight weights; all of them lie in one sub-block.
//
// Blocks of 256 threads, 32 registers each (nvcc 13.0), no shared memory: an SM of an H200 holds all of its 2,048 threads. Bound
// by its loads of single bytes, which are many for what they bring; it runs once.
#include "kernels/cuda/float_dispatch.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/weight_block.cuh"

namespace quire::cuda {
namespace {

template <typename T>
__global__ void dequantize_kernel(const std::uint8_t* blocks, std::int64_t row_stride, BlockFormat format, Rows<T> out) {
  const RowPiece at = piece_of_row(num_chunks(out.size));
  if (at.piece >= num_chunks(out.size)) return;
  const int begin = at.piece * kChunk, first = begin % format.elements;
  const std::uint8_t* block = blocks + at.row * row_stride + static_cast<std::int64_t>(begin / format.elements) * format.bytes;
  const BlockScale scale = block_scale(format.type, block, first);
  float x[kChunk];
  QUIRE_UNROLL
  for (int i = 0; i < kChunk; ++i) {
    x[i] = __fmul_rn(scale.d, static_cast<float>(block_quant(format.type, block, first + i)));
    if (has_minimum(format.type)) x[i] += scale.m;
  }
  out[at.row].store(at.piece, x);
}

}  // namespace

void dequantize(const TensorView& from, const TensorView& to, Stream stream) {
  const char* op = "dequantize";
  require(from.rank == 2 && is_quantized(from.dtype), op, "from", from, "[M, K] of a quantised type");
  const std::int64_t rows = from.dim(0), width = from.dim(1);
  require(width % block_elements(from.dtype) == 0, op, "from", from, "of whole blocks");
  require(is_shaped(from, from.dtype, {rows, width}), op, "from", from, "rows that do not overlap");
  require(is_activation(to.dtype) && is_shaped(to, to.dtype, {rows, width}), op, "to", to, "[M, K] BF16 or F16");
  dispatch_activation(to.dtype, [&]<typename T>() {
    launch(stream, dequantize_kernel<T>, row_pieces_shape(rows, width / kChunk), from.as<const std::uint8_t>(),
           row_bytes(from.dtype, from.outer_stride), block_format(from.dtype), rows_of<T>(to));
  });
}

}  // namespace quire::cuda
