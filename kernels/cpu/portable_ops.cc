// Ops that are the same for every instruction set: double precision or pure copies.
#include <cmath>
#include <cstring>

#include "core/math.h"
#include "kernels/cpu/kernels.h"

namespace quire::cpu {

void rope_table(const RopeTableArgs& args, ThreadPool& pool) {
  const std::int64_t pairs = args.inv_freq.dim(0);
  pool.parallel_for(args.positions.dim(0), 1 + 512 / (pairs + 1), [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = begin; t < end; ++t) {
      const double position = args.positions.as<const std::int32_t>()[t];
      float* out = args.cos_sin.row_as<float>(t);
      for (std::int64_t i = 0; i < pairs; ++i) {
        const double angle = position * static_cast<double>(args.inv_freq.as<const float>()[i]);
        out[2 * i] = static_cast<float>(std::cos(angle) * static_cast<double>(args.magnitude));
        out[2 * i + 1] = static_cast<float>(std::sin(angle) * static_cast<double>(args.magnitude));
      }
    }
  });
}

void gather_rows(const GatherRowsArgs& args, ThreadPool&) {
  const auto bytes = static_cast<std::size_t>(row_bytes(args.x.dtype, args.x.dim(1)));
  for (std::int64_t r = 0; r < args.rows.dim(0); ++r) {
    std::memcpy(args.out.row(r), args.x.row(args.rows.as<const std::int32_t>()[r]), bytes);
  }
}

void copy_blocks(const CopyBlocksArgs& args) {
  auto* pool = static_cast<std::byte*>(args.pool);
  for (int i = 0; i < args.num_pairs; ++i) {
    std::memmove(pool + args.pairs[i].to * args.block_bytes, pool + args.pairs[i].from * args.block_bytes,
                 static_cast<std::size_t>(args.block_bytes));
  }
}

// Scores of one row, rounded up to whole lanes, and room for the rounding down of a window's first position.
std::size_t attention_scratch_bytes(std::int64_t max_kv_len, int num_threads) {
  const auto row = static_cast<std::size_t>(round_up<std::int64_t>(max_kv_len + 16, 16)) * sizeof(float);
  return row * static_cast<std::size_t>(num_threads);
}

}  // namespace quire::cpu
