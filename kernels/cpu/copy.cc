// What is the same for every instruction set: pure copies, double precision, sizes.
#include <cmath>
#include <cstring>

#include "kernels/cpu/attention_scratch.h"
#include "kernels/cpu/kernels.h"

namespace quire::cpu {

std::size_t attention_scratch_bytes(std::int64_t max_kv_len, int num_threads) {
  return static_cast<std::size_t>(attention_thread_floats(max_kv_len) * num_threads) * sizeof(float);
}

void rope_table(const RopeTableArgs& args, ThreadPool& pool) {
  const std::int64_t pairs = args.inv_freq.dim(0);
  const auto* inv_freq = args.inv_freq.as<float>();
  const double magnitude = static_cast<double>(args.magnitude);
  pool.parallel_for(args.positions.dim(0), 16, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = begin; t < end; ++t) {
      const double position = args.positions.as<std::int32_t>()[t];
      float* row = args.cos_sin.row_as<float>(t);
      for (std::int64_t i = 0; i < pairs; ++i) {
        const double angle = position * static_cast<double>(inv_freq[i]);
        row[2 * i] = static_cast<float>(std::cos(angle) * magnitude);
        row[2 * i + 1] = static_cast<float>(std::sin(angle) * magnitude);
      }
    }
  });
}

void gather_rows(const GatherRowsArgs& args, ThreadPool& pool) {
  const auto bytes = static_cast<std::size_t>(row_bytes(args.x.dtype, args.x.dim(1)));
  pool.parallel_for(args.rows.dim(0), 16, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) std::memcpy(args.out.row(r), args.x.row(args.rows.as<std::int32_t>()[r]), bytes);
  });
}

void copy_blocks(const CopyBlocksArgs& args) {
  auto* pool = static_cast<std::byte*>(args.pool);
  for (int i = 0; i < args.num_pairs; ++i) {
    const BlockPair& pair = args.pairs[i];
    if (pair.from == pair.to) continue;
    std::memcpy(pool + pair.to * args.block_bytes, pool + pair.from * args.block_bytes,
                static_cast<std::size_t>(args.block_bytes));
  }
}

}  // namespace quire::cpu
