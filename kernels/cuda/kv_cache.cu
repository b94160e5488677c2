// Keys and values into the pool, and whole blocks of it from place to place. Elements are counted in 64 bits: a pool has more
// than 2^32 of them.
//
// Blocks of 256 threads, at most 32 registers each (nvcc 13.0), no shared memory: an SM of an H200 holds all of its 2,048
// threads, with 16 bytes each 32 KB in flight. Blocks are copied by the driver.
#include "kernels/cuda/copy.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/kv_arguments.h"
#include "kernels/cuda/kv_row.cuh"

namespace quire::cuda {
namespace {

// A thread moves one chunk of one head; the heads of k come before those of v.
template <typename T>
__global__ void append_kv_kernel(Rows<const T> k, Rows<const T> v, const std::int64_t* slots, KvPool pool) {
  const int head_chunks = num_chunks(pool.layer.head_size), heads = pool.layer.num_heads;
  const RowPiece at = piece_of_row(2 * heads * head_chunks);
  const std::int64_t slot = slots[at.row];
  if (at.piece >= 2 * heads * head_chunks || slot < 0) return;
  const int chunk = at.piece % head_chunks, head = at.piece / head_chunks % heads;
  const bool is_key = at.piece < heads * head_chunks;
  const Row<const T> token = is_key ? k[at.row] : v[at.row];
  float x[kChunk];
  token.part(head * pool.layer.head_size, pool.layer.head_size).load(chunk, x);
  kv_row(pool, is_key ? pool.layer.keys : pool.layer.values, slot, head).store(chunk, x);
}

}  // namespace

void append_kv(const AppendKvArgs& args, Stream stream) {
  check_new_kv("append_kv", args.k, args.v, args.slots, args.kv);
  const std::int64_t head_chunks = (args.kv.head_size + kChunk - 1) / kChunk;
  dispatch_activation(args.k.dtype, [&]<typename T>() {
    launch(stream, append_kv_kernel<T>, row_pieces_shape(args.k.dim(0), 2 * args.kv.num_heads * head_chunks),
           rows_of<const T>(args.k), rows_of<const T>(args.v), args.slots.as<const std::int64_t>(), kv_pool_of(args.kv));
  });
}

void copy_blocks(const CopyBlocksArgs& args, Stream stream) {
  transfer_blocks({.from_pool = args.pool,
                   .to_pool = args.pool,
                   .block_bytes = args.block_bytes,
                   .pairs = args.pairs,
                   .num_pairs = args.num_pairs},
                  stream);
}

void transfer_blocks(const TransferBlocksArgs& args, Stream stream) {
  require(args.block_bytes >= 0, "transfer_blocks", "block_bytes", args.block_bytes, "positive or 0");
  const auto* from = static_cast<const char*>(args.from_pool);
  auto* to = static_cast<char*>(args.to_pool);
  for (int i = 0; i < args.num_pairs; ++i) {
    const BlockPair& pair = args.pairs[i];
    require(pair.from >= 0, "transfer_blocks", "pairs.from", pair.from, "a block, 0 or above");
    require(pair.to >= 0, "transfer_blocks", "pairs.to", pair.to, "a block, 0 or above");
    const char* source = from + pair.from * args.block_bytes;
    char* target = to + pair.to * args.block_bytes;
    if (source != target) copy_async(target, source, static_cast<std::size_t>(args.block_bytes), stream);
  }
}

}  // namespace quire::cuda
