// ldmatrix and mma.sync.m16n8k16 with the layouts of the PTX ISA 8.5 as intrinsics.cuh quotes them. Sums of mma are exact up to
// one rounding to float at the end; a GPU rounds, or cuts off, more often.
#include <cstring>

#include "simt/block.h"
#include "simt/half.h"
#include "simt/instructions.h"
#include "simt/memory.h"

namespace simt {
namespace {

constexpr std::uint32_t kAllLanes = 0xFFFFFFFFu;

template <bool kTransposed>
void gather_rows(WarpOperation& operation) {
  std::uint16_t matrices[4][8][8];
  for (int i = 0; i < kWarpLanes; ++i) {
    const void* row = nullptr;
    std::memcpy(&row, operation.operands[i].data(), sizeof(row));
    std::memcpy(matrices[i / 8][i % 8], row, 16);
  }
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    const int g = lane / 4;
    const int t = lane % 4;
    std::uint16_t pairs[4][2];
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < 2; ++j) pairs[i][j] = kTransposed ? matrices[i][2 * t + j][g] : matrices[i][g][2 * t + j];
    }
    std::memcpy(operation.results[lane].data(), pairs, sizeof(pairs));
  }
}

struct MultiplyOperand {
  std::uint16_t a[8];
  std::uint16_t b[4];
  float d[4];
};
static_assert(sizeof(MultiplyOperand) <= WarpOperation::kMaxBytes);

// Of b and d. One value for the compiler, so that sanitizers check a row at a time.
using Row = double __attribute__((vector_size(8 * sizeof(double))));

template <float (*kToFloat)(std::uint16_t)>
void multiply(WarpOperation& operation) {
  double a[16][16];
  Row b[16];
  Row d[16];
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    const int g = lane / 4;
    const int t = lane % 4;
    MultiplyOperand operand;
    std::memcpy(&operand, operation.operands[lane].data(), sizeof(operand));
    for (int i = 0; i < 8; ++i) a[g + (i & 2) * 4][2 * t + (i & 1) + (i & 4) * 2] = kToFloat(operand.a[i]);
    for (int i = 0; i < 4; ++i) b[2 * t + (i & 1) + (i & 2) * 4][g] = kToFloat(operand.b[i]);
    for (int i = 0; i < 4; ++i) d[g + (i & 2) * 4][2 * t + (i & 1)] = operand.d[i];
  }
  for (int row = 0; row < 16; ++row) {
    Row sum = d[row];
    for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k];
    d[row] = sum;
  }
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    const int g = lane / 4;
    const int t = lane % 4;
    float mine[4];
    for (int i = 0; i < 4; ++i) mine[i] = static_cast<float>(d[g + (i & 2) * 4][2 * t + (i & 1)]);
    std::memcpy(operation.results[lane].data(), mine, sizeof(mine));
  }
}

}  // namespace

void load_matrices(std::uint32_t (&r)[4], const void* row, bool transposed, Site site) {
  Block& b = block();
  const char* const name = transposed ? "ldmatrix_x4_trans" : "ldmatrix_x4";
  if (!b.shared().in_use(row, 16)) b.fail("{} at {}: the row is outside of the block's shared memory", name, to_string(site));
  if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0) b.fail("{} at {}: the row is not 16-byte aligned", name, to_string(site));
  observe_shared(RaceDetector::Access::kRead, TrafficCounter::Kind::kMatrixLoad, row, 16, site);
  WarpOperation& operation =
      b.meet({name, sizeof(row)}, kAllLanes, &row, site, transposed ? &gather_rows<true> : &gather_rows<false>);
  std::memcpy(r, operation.results[b.running().lane].data(), sizeof(r));
  b.leave(operation);
}

void multiply_matrices(MatrixType type, float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                       Site site) {
  Block& b = block();
  MultiplyOperand operand;
  const std::uint32_t bs[2] = {b0, b1};
  std::memcpy(operand.a, a, sizeof(operand.a));
  std::memcpy(operand.b, bs, sizeof(operand.b));
  std::memcpy(operand.d, d, sizeof(operand.d));
  const bool is_half = type == MatrixType::kHalf;
  WarpOperation& operation = b.meet({is_half ? "mma_m16n8k16<Half>" : "mma_m16n8k16<BFloat16>", sizeof(operand)}, kAllLanes,
                                    &operand, site, is_half ? &multiply<half_to_float> : &multiply<bfloat16_to_float>);
  std::memcpy(d, operation.results[b.running().lane].data(), sizeof(d));
  b.leave(operation);
}

}  // namespace simt
