// Rows by index: the embedding of tokens, and the rows of hidden states that need logits. One thread moves one chunk.
//
// Blocks of 256 threads, at most 22 registers each (nvcc 13.0), no shared memory: an SM of an H200 holds all of its 2,048
// threads, with 16 bytes each 32 KB in flight, where 27 KB hide the latency of its memory.
#include "kernels/cuda/float_dispatch.h"
#include "kernels/cuda/kernels.h"

namespace quire::cuda {
namespace {

template <typename Weight, typename T>
__global__ void embed_kernel(Rows<const Weight> table, const std::int32_t* token_ids, Rows<T> out, float scale) {
  const RowPiece at = piece_of_row(num_chunks(out.size));
  if (at.piece >= num_chunks(out.size)) return;
  float x[kChunk];
  table[token_ids[at.row]].load(at.piece, x);
  QUIRE_UNROLL
  for (int i = 0; i < kChunk; ++i) x[i] *= scale;
  out[at.row].store(at.piece, x);
}

// Bits, whatever they mean: rows of two-byte units.
__global__ void gather_rows_kernel(Rows<const std::uint16_t> x, const std::int32_t* rows, Rows<std::uint16_t> out) {
  const RowPiece at = piece_of_row(num_chunks(out.size));
  if (at.piece >= num_chunks(out.size)) return;
  const Row<const std::uint16_t> from = x[rows[at.row]];
  const Row<std::uint16_t> to = out[at.row];
  const int begin = at.piece * kChunk;
  if (from.is_whole(at.piece) && to.is_whole(at.piece)) {
    store_global(reinterpret_cast<uint4*>(to.data + begin), load_global(reinterpret_cast<const uint4*>(from.data + begin)));
    return;
  }
  for (int i = begin; i < begin + kChunk && i < out.size; ++i) store_global(to.data + i, load_global(from.data + i));
}

// The same memory in units of two bytes.
TensorView as_units(TensorView view) {
  const std::int64_t units = block_bytes(view.dtype) / 2;
  view.outer_stride *= units;
  view.shape[1] *= units;
  return view;
}

}  // namespace

void embed(const EmbedArgs& args, Stream stream) {
  const char* op = "embed";
  require(args.table.rank == 2 && (is_activation(args.table.dtype) || args.table.dtype == DType::kF32), op, "table", args.table,
          "[V, H] BF16, F16 or F32");
  require(is_activation(args.out.dtype), op, "out", args.out, "BF16 or F16");
  const std::int64_t tokens = args.token_ids.dim(0), width = args.table.dim(1);
  require(is_shaped(args.token_ids, DType::kI32, {tokens}), op, "token_ids", args.token_ids, "[T] I32");
  require(is_shaped(args.table, args.table.dtype, {args.table.dim(0), width}), op, "table", args.table,
          "rows that do not overlap");
  require(is_shaped(args.out, args.out.dtype, {tokens, width}), op, "out", args.out, "[T, H]");
  dispatch_float(args.table.dtype, [&]<typename Weight>() {
    dispatch_activation(args.out.dtype, [&]<typename T>() {
      launch(stream, embed_kernel<Weight, T>, row_pieces_shape(tokens, (width + kChunk - 1) / kChunk),
             rows_of<const Weight>(args.table), args.token_ids.as<const std::int32_t>(), rows_of<T>(args.out), args.scale);
    });
  });
}

void gather_rows(const GatherRowsArgs& args, Stream stream) {
  const char* op = "gather_rows";
  require(args.x.rank == 2 && (is_activation(args.x.dtype) || args.x.dtype == DType::kF32), op, "x", args.x,
          "[T, H] BF16, F16 or F32");
  const std::int64_t rows = args.rows.dim(0), width = args.x.dim(1);
  require(is_shaped(args.x, args.x.dtype, {args.x.dim(0), width}), op, "x", args.x, "rows that do not overlap");
  require(is_shaped(args.rows, DType::kI32, {rows}), op, "rows", args.rows, "[R] I32");
  require(is_shaped(args.out, args.x.dtype, {rows, width}), op, "out", args.out, "[R, H] of x's type");
  const auto from = rows_of<const std::uint16_t>(as_units(args.x));
  const auto to = rows_of<std::uint16_t>(as_units(args.out));
  launch(stream, gather_rows_kernel, row_pieces_shape(rows, (to.size + kChunk - 1) / kChunk), from,
         args.rows.as<const std::int32_t>(), to);
}

}  // namespace quire::cuda
