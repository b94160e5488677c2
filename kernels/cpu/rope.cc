// Rotary position embedding (Su et al. 2021, arXiv:2104.09864, eq. 34), in place. Both kinds of pairing are one loop: each
// element x with its partner y becomes fma(x, cos, y * sin), where sin has the sign of the element's side of the pair.
#include "kernels/cpu/math_f32.h"
#include "kernels/cpu/variant.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

// The factors of one token, spread to the elements of a head, and the partner of each element.
struct Rotation {
  float cos[kMaxHeadSize];
  float sin[kMaxHeadSize];  // negative at the first of a pair
  std::int32_t partner[kMaxHeadSize];
};

void pair_elements(RopeKind kind, std::int32_t rot, Rotation& rotation) {
  const std::int32_t half = rot / 2;
  for (std::int32_t i = 0; i < half; ++i) {
    const std::int32_t first = kind == RopeKind::kHalfSplit ? i : 2 * i;
    const std::int32_t second = kind == RopeKind::kHalfSplit ? i + half : 2 * i + 1;
    rotation.partner[first] = second;
    rotation.partner[second] = first;
  }
}

void spread_factors(RopeKind kind, const float* cos_sin, std::int32_t rot, Rotation& rotation) {
  const std::int32_t half = rot / 2;
  for (std::int32_t i = 0; i < half; ++i) {
    const std::int32_t first = kind == RopeKind::kHalfSplit ? i : 2 * i;
    const std::int32_t second = rotation.partner[first];
    rotation.cos[first] = rotation.cos[second] = cos_sin[2 * i];
    rotation.sin[first] = -cos_sin[2 * i + 1];
    rotation.sin[second] = cos_sin[2 * i + 1];
  }
}

void rotate_head(float* x, std::int32_t rot, const Rotation& rotation) {
  float partners[kMaxHeadSize];
  for (std::int32_t i = 0; i < rot; ++i) partners[i] = x[rotation.partner[i]];
  for (std::int32_t i = 0; i < rot; i += kLanes) {
    const std::int32_t n = rot - i < kLanes ? rot - i : kLanes;
    const F32x16 crossed = load_part(partners + i, n) * load_part(rotation.sin + i, n);
    store_part(fma(load_part(x + i, n), load_part(rotation.cos + i, n), crossed), x + i, n);
  }
}

}  // namespace

void rope(const RopeArgs& args, ThreadPool& pool) {
  const std::int64_t heads = args.x.dim(1);
  const std::int64_t head_size = args.x.dim(2);
  const std::int32_t rot = static_cast<std::int32_t>(args.cos_sin.dim(1) * 2);
  constexpr std::int64_t kPieceElements = 8192;
  const std::int64_t grain = 1 + kPieceElements / (heads * head_size + 1);  // tokens
  pool.parallel_for(args.x.dim(0), grain, [&](std::int64_t begin, std::int64_t end, int) {
    Rotation rotation;
    pair_elements(args.kind, rot, rotation);
    for (std::int64_t t = begin; t < end; ++t) {
      spread_factors(args.kind, args.cos_sin.row_as<float>(t), rot, rotation);
      float* x = args.x.row_as<float>(t);
      for (std::int64_t h = 0; h < heads; ++h) rotate_head(x + h * head_size, rot, rotation);
    }
  });
}

}  // namespace quire::cpu::QUIRE_ISA
