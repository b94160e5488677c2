// Writes keys and values of new tokens to their slots, rounded to the pool's type (to nearest even).
#include "kernels/cpu/simd.h"
#include "kernels/cpu/variant.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

struct ToF32 {
  using Stored = float;
  static float convert(float x) { return x; }
};
struct ToF16 {
  using Stored = std::uint16_t;
  static std::uint16_t convert(float x) { return f32_to_f16(x); }
};
struct ToBf16 {
  using Stored = std::uint16_t;
  static std::uint16_t convert(float x) { return f32_to_bf16(x); }
};

template <typename To>
void append_row(const KvLayer& kv, void* pool, const float* x, std::int64_t slot) {
  using Stored = typename To::Stored;
  const std::int64_t size = kv.head_size;
  const std::int64_t block_size = kv.block_size;
  Stored* block = static_cast<Stored*>(pool) + slot / block_size * kv.block_stride;
  for (std::int64_t h = 0; h < kv.num_heads; ++h) {
    Stored* row = block + (h * block_size + slot % block_size) * size;
    for (std::int64_t d = 0; d < size; ++d) row[d] = To::convert(x[h * size + d]);
  }
}

template <typename To>
void append(const AppendKvArgs& args, ThreadPool& pool) {
  constexpr std::int64_t kPieceElements = 8192;
  const std::int64_t grain = 1 + kPieceElements / (std::int64_t{args.kv.num_heads} * args.kv.head_size + 1);  // tokens
  pool.parallel_for(args.k.dim(0), grain, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t slot = args.slots.as<std::int64_t>()[t];
      if (slot < 0) continue;
      append_row<To>(args.kv, args.kv.keys, args.k.row_as<float>(t), slot);
      append_row<To>(args.kv, args.kv.values, args.v.row_as<float>(t), slot);
    }
  });
}

}  // namespace

void append_kv(const AppendKvArgs& args, ThreadPool& pool) {
  switch (args.kv.dtype) {
    case DType::kF32:
      return append<ToF32>(args, pool);
    case DType::kBF16:
      return append<ToBf16>(args, pool);
    default:
      return append<ToF16>(args, pool);
  }
}

}  // namespace quire::cpu::QUIRE_ISA
