// Row norms and residual additions. Sixteen lanes of sums of squares, lane i taking elements i, i + 16, ... in ascending order.
#include "kernels/cpu/math_f32.h"
#include "kernels/cpu/variant.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

constexpr std::int64_t kPieceElements = 16384;  // per piece of parallel work: several microseconds

std::int64_t rows_per_piece(std::int64_t width) { return width >= kPieceElements ? 1 : kPieceElements / (width + 1) + 1; }

std::int64_t lanes_at(std::int64_t i, std::int64_t width) { return width - i < kLanes ? width - i : kLanes; }

F32x16 add_square(F32x16 sum, F32x16 x) { return fma(x, x, sum); }

// out = x * (1 / sqrt(mean + eps)) * weight, the two products rounded one after the other.
void scale_row(const float* x, const float* weight, float* out, std::int64_t width, float sum_of_squares, float eps) {
  const F32x16 inverse = F32x16::set1(1.0f / __builtin_sqrtf(sum_of_squares / static_cast<float>(width) + eps));
  for (std::int64_t i = 0; i < width; i += kLanes) {
    const std::int64_t n = lanes_at(i, width);
    store_part(load_part(x + i, n) * inverse * load_part(weight + i, n), out + i, n);
  }
}

}  // namespace

void rms_norm(const RmsNormArgs& args, ThreadPool& pool) {
  const std::int64_t width = args.x.dim(1);
  pool.parallel_for(args.x.dim(0), rows_per_piece(width), [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) {
      const float* x = args.x.row_as<float>(r);
      F32x16 sum = F32x16::zero();
      for (std::int64_t i = 0; i < width; i += kLanes) sum = add_square(sum, load_part(x + i, lanes_at(i, width)));
      scale_row(x, args.weight.as<float>(), args.out.row_as<float>(r), width, reduce_add(sum), args.eps);
    }
  });
}

void add_rms_norm(const AddRmsNormArgs& args, ThreadPool& pool) {
  const std::int64_t width = args.x.dim(1);
  pool.parallel_for(args.x.dim(0), rows_per_piece(width), [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) {
      const float* x = args.x.row_as<float>(r);
      float* residual = args.residual.row_as<float>(r);
      F32x16 sum = F32x16::zero();
      for (std::int64_t i = 0; i < width; i += kLanes) {
        const std::int64_t n = lanes_at(i, width);
        const F32x16 added = load_part(residual + i, n) + load_part(x + i, n);
        store_part(added, residual + i, n);
        sum = add_square(sum, added);
      }
      scale_row(residual, args.weight.as<float>(), args.out.row_as<float>(r), width, reduce_add(sum), args.eps);
    }
  });
}

void add(const AddArgs& args, ThreadPool& pool) {
  const std::int64_t width = args.x.dim(1);
  pool.parallel_for(args.x.dim(0), rows_per_piece(width), [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) {
      const float* x = args.x.row_as<float>(r);
      float* residual = args.residual.row_as<float>(r);
      for (std::int64_t i = 0; i < width; i += kLanes) {
        const std::int64_t n = lanes_at(i, width);
        store_part(load_part(residual + i, n) + load_part(x + i, n), residual + i, n);
      }
    }
  });
}

}  // namespace quire::cpu::QUIRE_ISA
