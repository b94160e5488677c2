// The vector functions of one instruction set as a table, so that a test compiled without flags can call them.
#pragma once

#include <cstdint>

namespace quire::testing {

struct SimdProbe {
  using Map = void (*)(const float* in, float* out);                                  // 16 lanes
  using Map2 = void (*)(const float* a, const float* b, float* out);                  // 16 lanes each
  using Map3 = void (*)(const float* a, const float* b, const float* c, float* out);  // 16 lanes each
  Map exp, tanh, silu, gelu_tanh, round_even, exp2_integral;
  Map2 add, subtract, multiply, divide, max, min, softcapped;
  Map3 fma;
  void (*load_f16)(const std::uint16_t* in, float* out);   // 16 lanes
  void (*load_bf16)(const std::uint16_t* in, float* out);  // 16 lanes
  float (*reduce_add)(const float* in);                    // 16 lanes
  void (*reduce_add4)(const float* in, float* out);        // 4 x 16 lanes to 4
  void (*load_part)(const float* in, std::int64_t count, float fill, float* out);
  void (*store_part)(const float* in, std::int64_t count, float* out);
  float (*fma_scalar)(float a, float b, float c);
  float (*f16_to_f32)(std::uint16_t h);
  std::uint16_t (*f32_to_f16)(float f);
  float (*bf16_to_f32)(std::uint16_t b);
  std::uint16_t (*f32_to_bf16)(float f);
};

}  // namespace quire::testing

namespace quire::cpu::portable {
extern const testing::SimdProbe kProbe;
}
namespace quire::cpu::avx2 {
extern const testing::SimdProbe kProbe;
}
namespace quire::cpu::avx512 {
extern const testing::SimdProbe kProbe;
}
namespace quire::cpu::avx512_simde {
extern const testing::SimdProbe kProbe;
}
