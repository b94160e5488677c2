// Gated activations of the MLP, and the soft cap of logits.
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/math_f32.h"
#include "kernels/cpu/variant.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

constexpr std::int64_t kElementsPerTask = 8192;

inline std::int64_t rows_per_task(std::int64_t row_size) {
  return row_size >= kElementsPerTask ? 1 : kElementsPerTask / row_size;
}

// x / (1 + e^-x).
inline F32x16 silu(F32x16 x) { return x / (F32x16::set1(1.0f) + exp(F32x16::zero() - x)); }

// 0.5 x (1 + tanh(u)) = x / (1 + e^-2u) with u = sqrt(2 / pi) (x + 0.044715 x^3): no cancellation for negative x.
inline F32x16 gelu_tanh(F32x16 x) {
  const F32x16 cubic = fma(x * x, x * F32x16::set1(0.044715f), x);
  return x / (F32x16::set1(1.0f) + exp(cubic * F32x16::set1(-1.5957691216057308f)));
}

template <typename F>
void gate_row(const float* gate, const float* up, float* out, std::int64_t size, F activation) {
  for (std::int64_t i = 0; i < size; i += kLanes) {
    const F32x16 g = activation(load_some<LoadF32>(gate + i, size - i));
    store_some(g * load_some<LoadF32>(up + i, size - i), out + i, size - i);
  }
}

}  // namespace

void gated_activation(const GatedActivationArgs& args, ThreadPool& pool) {
  const std::int64_t size = args.gate.dim(1);
  pool.parallel_for(args.gate.dim(0), rows_per_task(size), [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) {
      const float* gate = args.gate.row_as<float>(r);
      const float* up = args.up.row_as<float>(r);
      float* out = args.out.row_as<float>(r);
      if (args.activation == Activation::kSilu) {
        gate_row(gate, up, out, size, [](F32x16 x) { return silu(x); });
      } else {
        gate_row(gate, up, out, size, [](F32x16 x) { return gelu_tanh(x); });
      }
    }
  });
}

void softcap(const SoftcapArgs& args, ThreadPool& pool) {
  const std::int64_t size = args.logits.dim(1);
  const F32x16 cap = F32x16::set1(args.cap);
  pool.parallel_for(args.logits.dim(0), 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) {
      float* row = args.logits.row_as<float>(r);
      for (std::int64_t i = 0; i < size; i += kLanes) {
        store_some(cap * tanh(load_some<LoadF32>(row + i, size - i) / cap), row + i, size - i);
      }
    }
  });
}

}  // namespace quire::cpu::QUIRE_ISA
