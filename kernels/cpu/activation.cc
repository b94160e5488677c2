// Elementwise functions: gated activations of the MLP, soft-capping of logits.
#include "kernels/cpu/math_f32.h"
#include "kernels/cpu/variant.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

constexpr std::int64_t kPieceElements = 2048;  // a row is cut into pieces of this many, so that one row can use all threads

// Calls body(row, begin, end) on pieces that cover [rows, width].
template <typename Body>
void for_each_piece(std::int64_t rows, std::int64_t width, ThreadPool& pool, const Body& body) {
  const std::int64_t pieces = (width + kPieceElements - 1) / kPieceElements;  // of a row
  pool.parallel_for(rows * pieces, 1, [&](std::int64_t first, std::int64_t last, int) {
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t begin = i % pieces * kPieceElements;
      body(i / pieces, begin, begin + kPieceElements < width ? begin + kPieceElements : width);
    }
  });
}

template <F32x16 (*Function)(F32x16)>
void gated(const GatedActivationArgs& args, ThreadPool& pool) {
  for_each_piece(args.gate.dim(0), args.gate.dim(1), pool, [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
    const float* gate = args.gate.row_as<float>(row);
    const float* up = args.up.row_as<float>(row);
    float* out = args.out.row_as<float>(row);
    for (std::int64_t i = begin; i < end; i += kLanes) {
      const std::int64_t n = end - i < kLanes ? end - i : kLanes;
      store_part(Function(load_part(gate + i, n)) * load_part(up + i, n), out + i, n);
    }
  });
}

}  // namespace

void gated_activation(const GatedActivationArgs& args, ThreadPool& pool) {
  if (args.activation == Activation::kSilu) {
    gated<silu>(args, pool);
  } else {
    gated<gelu_tanh>(args, pool);
  }
}

void softcap(const SoftcapArgs& args, ThreadPool& pool) {
  const F32x16 cap = F32x16::set1(args.cap);
  for_each_piece(args.logits.dim(0), args.logits.dim(1), pool, [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
    float* logits = args.logits.row_as<float>(row);
    for (std::int64_t i = begin; i < end; i += kLanes) {
      const std::int64_t n = end - i < kLanes ? end - i : kLanes;
      store_part(softcapped(load_part(logits + i, n), cap), logits + i, n);
    }
  });
}

}  // namespace quire::cpu::QUIRE_ISA
