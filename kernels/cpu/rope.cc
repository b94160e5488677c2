// Rotary position embedding, in place. Su et al. 2021, arXiv:2104.09864, eq. 34.
#include "kernels/cpu/simd.h"
#include "kernels/cpu/variant.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

constexpr std::int64_t kPairsPerTask = 4096;

// (a, b) -> (a cos - b sin, b cos + a sin): the product with sin is rounded, then one fma.
inline void rotate(float& a, float& b, float cosine, float sine) {
  const float rotated_a = fma(a, cosine, -(b * sine));
  const float rotated_b = fma(b, cosine, a * sine);
  a = rotated_a;
  b = rotated_b;
}

}  // namespace

void rope(const RopeArgs& args, ThreadPool& pool) {
  const std::int64_t heads = args.x.dim(1), head_size = args.x.dim(2), pairs = args.cos_sin.dim(1);
  const bool half_split = args.kind == RopeKind::kHalfSplit;
  const std::int64_t first = half_split ? 1 : 2;        // distance from one pair's a to the next
  const std::int64_t partner = half_split ? pairs : 1;  // distance from a to b
  const std::int64_t grain = 1 + kPairsPerTask / (heads * pairs + 1);
  pool.parallel_for(args.x.dim(0), grain, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = begin; t < end; ++t) {
      const float* table = args.cos_sin.row_as<float>(t);
      for (std::int64_t h = 0; h < heads; ++h) {
        float* x = args.x.row_as<float>(t) + h * head_size;
        for (std::int64_t i = 0; i < pairs; ++i) rotate(x[i * first], x[i * first + partner], table[2 * i], table[2 * i + 1]);
      }
    }
  });
}

}  // namespace quire::cpu::QUIRE_ISA
