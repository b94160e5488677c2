// append_kv: the new tokens' keys and values into their slots.
#include "kernels/cpu/simd.h"
#include "kernels/cpu/variant.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

constexpr std::int64_t kElementsPerTask = 16384;

// One head's row, to the pool's type, to nearest even.
void store_row(const float* from, void* to, DType type, std::int64_t size) {
  switch (type) {
    case DType::kF16:
      for (std::int64_t d = 0; d < size; ++d) static_cast<std::uint16_t*>(to)[d] = f32_to_f16(from[d]);
      return;
    case DType::kBF16:
      for (std::int64_t d = 0; d < size; ++d) static_cast<std::uint16_t*>(to)[d] = f32_to_bf16(from[d]);
      return;
    default:
      for (std::int64_t d = 0; d < size; ++d) static_cast<float*>(to)[d] = from[d];
      return;
  }
}

}  // namespace

void append_kv(const AppendKvArgs& args, ThreadPool& pool) {
  const KvLayer& kv = args.kv;
  const std::int64_t row_size = std::int64_t{kv.num_heads} * kv.head_size;
  const std::int64_t element = block_bytes(kv.dtype);
  pool.parallel_for(args.k.dim(0), 1 + kElementsPerTask / (2 * row_size), [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t slot = args.slots.as<const std::int64_t>()[t];
      if (slot < 0) continue;
      const std::int64_t block = slot / kv.block_size, offset = slot % kv.block_size;
      for (std::int64_t h = 0; h < kv.num_heads; ++h) {
        const std::int64_t place = element * (block * kv.block_stride + (h * kv.block_size + offset) * kv.head_size);
        store_row(args.k.row_as<float>(t) + h * kv.head_size, static_cast<char*>(kv.keys) + place, kv.dtype, kv.head_size);
        store_row(args.v.row_as<float>(t) + h * kv.head_size, static_cast<char*>(kv.values) + place, kv.dtype, kv.head_size);
      }
    }
  });
}

}  // namespace quire::cpu::QUIRE_ISA
