// See docs/numerics.md, "Quantising activations". The largest magnitude is taken over the bits as integers: that order is total,
// NaN above infinity above the finite numbers, so that it does not matter how the lanes are paired.
#include "kernels/cpu/quantize.h"

#include "kernels/cpu/simd.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

constexpr std::uint32_t kMagnitude = 0x7fffffffu;
constexpr std::uint32_t kInfinity = 0x7f800000u;
constexpr float kSmallest = 0x1p-100f;  // blocks below are zero: 127 / max stays finite

#if QUIRE_ISA_AVX2

std::uint32_t max_magnitude(const float* x) {
  __m256i largest = _mm256_setzero_si256();
  for (int i = 0; i < kBlock; i += 8) {
    const __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(x + i));
    largest = _mm256_max_epi32(largest, _mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(kMagnitude))));
  }
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(four));
}

void fill(const float* x, float inverse, ActivationBlock& out) {
  const __m256 scale = _mm256_set1_ps(inverse);
  const auto round8 = [&](int i) { return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), scale)); };
  // Packing works within 128-bit halves; the permutation restores the order of groups of four.
  const __m256i q16a = _mm256_packs_epi32(round8(0), round8(8));
  const __m256i q16b = _mm256_packs_epi32(round8(16), round8(24));
  const __m256i q8 = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(q16a, q16b), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.q), q8);
  const auto sum = [](__m256i q16) {
    const __m256i pairs = _mm256_madd_epi16(q16, _mm256_set1_epi16(1));
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return static_cast<std::int16_t>(_mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1))));
  };
  out.half_sum[0] = sum(q16a);
  out.half_sum[1] = sum(q16b);
}

#else

std::uint32_t max_magnitude(const float* x) {
  std::uint32_t largest = 0;
  for (int i = 0; i < kBlock; ++i) {
    const std::uint32_t magnitude = float_to_bits(x[i]) & kMagnitude;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

void fill(const float* x, float inverse, ActivationBlock& out) {
  for (int half = 0; half < 2; ++half) {
    int sum = 0;
    for (int i = 16 * half; i < 16 * half + 16; ++i) {
      const int q = static_cast<int>(std::nearbyint(x[i] * inverse));
      out.q[i] = static_cast<std::int8_t>(q);
      sum += q;
    }
    out.half_sum[half] = static_cast<std::int16_t>(sum);
  }
}

#endif

}  // namespace

void quantize_row(const float* x, std::int64_t num_blocks, ActivationBlock* out) {
  for (std::int64_t b = 0; b < num_blocks; ++b, x += kBlock) {
    ActivationBlock& block = out[b];
    const std::uint32_t bits = max_magnitude(x);
    float largest;
    __builtin_memcpy(&largest, &bits, sizeof largest);
    if (bits >= kInfinity || largest < kSmallest) {
      block = ActivationBlock{};
      if (bits >= kInfinity) block.d = block.d_sum = __builtin_nanf("");
      continue;
    }
    fill(x, 127.0f / largest, block);
    block.d = largest / 127.0f;
    block.d_sum = block.d * static_cast<float>(block.half_sum[0] + block.half_sum[1]);
  }
}

void quantize_row_in_two_terms(const float* x, std::int64_t num_blocks, ActivationBlock* first, ActivationBlock* second) {
  for (std::int64_t b = 0; b < num_blocks; ++b, x += kBlock) {
    quantize_row(x, 1, first + b);
    float rest[kBlock];
    for (int i = 0; i < kBlock; ++i) rest[i] = fma(-first[b].d, static_cast<float>(first[b].q[i]), x[i]);
    quantize_row(rest, 1, second + b);
  }
}

}  // namespace quire::cpu::QUIRE_ISA
