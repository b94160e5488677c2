// Compiled once per instruction set, as kernel sources are.
#include "tests/kernels/simd_probe.h"

#include "kernels/cpu/math_f32.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

template <F32x16 (*F)(F32x16)>
void map(const float* in, float* out) {
  F(F32x16::load(in)).store(out);
}

template <typename F>
constexpr auto map1(F) {
  return [](const float* in, float* out) { F{}(F32x16::load(in)).store(out); };
}
template <typename F>
constexpr auto map2(F) {
  return [](const float* a, const float* b, float* out) { F{}(F32x16::load(a), F32x16::load(b)).store(out); };
}

}  // namespace

extern constinit const testing::SimdProbe kProbe{
    .exp = map<exp>,
    .tanh = map<tanh>,
    .silu = map<silu>,
    .gelu_tanh = map<gelu_tanh>,
    .round_even = map1([](F32x16 a) { return round_even(a); }),
    .exp2_integral = map1([](F32x16 a) { return exp2_integral(a); }),
    .add = map2([](F32x16 a, F32x16 b) { return a + b; }),
    .subtract = map2([](F32x16 a, F32x16 b) { return a - b; }),
    .multiply = map2([](F32x16 a, F32x16 b) { return a * b; }),
    .divide = map2([](F32x16 a, F32x16 b) { return a / b; }),
    .max = map2([](F32x16 a, F32x16 b) { return max(a, b); }),
    .min = map2([](F32x16 a, F32x16 b) { return min(a, b); }),
    .softcapped = map2([](F32x16 a, F32x16 b) { return softcapped(a, b); }),
    .fma = [](const float* a, const float* b, const float* c,
              float* out) { fma(F32x16::load(a), F32x16::load(b), F32x16::load(c)).store(out); },
    .load_f16 = [](const std::uint16_t* in, float* out) { F32x16::load_f16(in).store(out); },
    .load_bf16 = [](const std::uint16_t* in, float* out) { F32x16::load_bf16(in).store(out); },
    .reduce_add = [](const float* in) { return reduce_add(F32x16::load(in)); },
    .reduce_add4 =
        [](const float* in, float* out) {
          const F32x16 rows[4] = {F32x16::load(in), F32x16::load(in + 16), F32x16::load(in + 32), F32x16::load(in + 48)};
          reduce_add4(rows, out);
        },
    .load_part = [](const float* in, std::int64_t count, float fill, float* out) { load_part(in, count, fill).store(out); },
    .store_part = [](const float* in, std::int64_t count, float* out) { store_part(F32x16::load(in), out, count); },
    .fma_scalar = [](float a, float b, float c) { return fma(a, b, c); },
    .f16_to_f32 = [](std::uint16_t h) { return f16_to_f32(h); },
    .f32_to_f16 = [](float f) { return f32_to_f16(f); },
    .bf16_to_f32 = [](std::uint16_t b) { return bf16_to_f32(b); },
    .f32_to_bf16 = [](float f) { return f32_to_bf16(f); },
};

}  // namespace quire::cpu::QUIRE_ISA
