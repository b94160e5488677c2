// RMSNorm, alone and behind a residual add, and the residual add alone. Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4.
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/variant.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

constexpr std::int64_t kElementsPerTask = 16384;  // below it a second thread costs more than it gives

inline std::int64_t rows_per_task(std::int64_t row_size) {
  return row_size >= kElementsPerTask ? 1 : kElementsPerTask / row_size;
}

// sum of squares in sixteen lanes, one tree; then (x * (1 / sqrt(mean + eps))) * weight.
void norm_row(const float* x, const float* weight, float* out, std::int64_t size, float eps) {
  F32x16 squares = F32x16::zero();
  for (std::int64_t i = 0; i < size; i += kLanes) {
    const F32x16 v = load_some<LoadF32>(x + i, size - i);
    squares = fma(v, v, squares);
  }
  const float mean = reduce_add(squares) / static_cast<float>(size);
  const F32x16 scale = F32x16::set1(1.0f / __builtin_sqrtf(mean + eps));
  for (std::int64_t i = 0; i < size; i += kLanes) {
    const F32x16 v = load_some<LoadF32>(x + i, size - i) * scale;
    store_some(v * load_some<LoadF32>(weight + i, size - i), out + i, size - i);
  }
}

void add_row(float* residual, const float* x, std::int64_t size) {
  for (std::int64_t i = 0; i < size; i += kLanes) {
    store_some(load_some<LoadF32>(residual + i, size - i) + load_some<LoadF32>(x + i, size - i), residual + i, size - i);
  }
}

}  // namespace

void rms_norm(const RmsNormArgs& args, ThreadPool& pool) {
  const std::int64_t size = args.x.dim(1);
  pool.parallel_for(args.x.dim(0), rows_per_task(size), [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) {
      norm_row(args.x.row_as<float>(r), args.weight.as<float>(), args.out.row_as<float>(r), size, args.eps);
    }
  });
}

void add_rms_norm(const AddRmsNormArgs& args, ThreadPool& pool) {
  const std::int64_t size = args.x.dim(1);
  pool.parallel_for(args.x.dim(0), rows_per_task(size), [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) {
      float* residual = args.residual.row_as<float>(r);
      add_row(residual, args.x.row_as<float>(r), size);
      norm_row(residual, args.weight.as<float>(), args.out.row_as<float>(r), size, args.eps);
    }
  });
}

void add(const AddArgs& args, ThreadPool& pool) {
  const std::int64_t size = args.x.dim(1);
  pool.parallel_for(args.x.dim(0), rows_per_task(size), [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) add_row(args.residual.row_as<float>(r), args.x.row_as<float>(r), size);
  });
}

}  // namespace quire::cpu::QUIRE_ISA
