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

// Lane l: the largest of x[l], x[l + 8], x[l + 16], x[l + 24].
__m256i max_magnitudes(const float* x) {
  __m256i largest = _mm256_setzero_si256();
  for (int i = 0; i < kBlock; i += 8) {
    const __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(x + i));
    largest = _mm256_max_epi32(largest, _mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(kMagnitude))));
  }
  return largest;
}

std::uint32_t max_magnitude(const float* x) {
  const __m256i largest = max_magnitudes(x);
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(four));
}

// x times `scale` as 8-bit integers.
__m256i to_integers(const float* x, __m256 scale) {
  const auto round8 = [&](int i) { return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), scale)); };
  // Packing works within 128-bit halves; the permutation restores the order of groups of four.
  const __m256i q16a = _mm256_packs_epi32(round8(0), round8(8));
  const __m256i q16b = _mm256_packs_epi32(round8(16), round8(24));
  return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(q16a, q16b), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// Lane l: the sum of integers 4l to 4l + 3, so that each 128-bit half holds those of a half of the block.
__m256i sums_of_four(__m256i q) { return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), q), _mm256_set1_epi16(1)); }

void fill(const float* x, float inverse, ActivationBlock& out) {
  const __m256i q = to_integers(x, _mm256_set1_ps(inverse));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.q), q);
  const __m256i sums = sums_of_four(q);
  const auto sum = [](__m128i s) {
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return static_cast<std::int16_t>(_mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1))));
  };
  out.half_sum[0] = sum(_mm256_castsi256_si128(sums));
  out.half_sum[1] = sum(_mm256_extracti128_si256(sums, 1));
}

constexpr int kBlocksAtOnce = 4;

// The largest magnitude of block i in lane i.
__m128i max_of_blocks(const float* x) {
  // Lanes of two blocks alternate, then of four.
  const auto pairs = [](__m256i a, __m256i b) {
    return _mm256_max_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
  };
  const __m256i ab = pairs(max_magnitudes(x), max_magnitudes(x + kBlock));
  const __m256i cd = pairs(max_magnitudes(x + 2 * kBlock), max_magnitudes(x + 3 * kBlock));
  const __m256i all = _mm256_max_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
  return _mm_max_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
}

// Four blocks, their scales and sums in the lanes of vectors. False: one of them is zero, infinite or NaN, and nothing is done.
bool quantize_blocks(const float* x, ActivationBlock* out) {
  const __m128i bits = max_of_blocks(x);
  const __m128i too_large = _mm_cmpgt_epi32(bits, _mm_set1_epi32(static_cast<int>(kInfinity) - 1));
  const __m128 largest = _mm_castsi128_ps(bits);
  const __m128 too_small = _mm_cmplt_ps(largest, _mm_set1_ps(kSmallest));
  if (_mm_movemask_ps(_mm_or_ps(_mm_castsi128_ps(too_large), too_small)) != 0) return false;

  alignas(16) float inverse[kBlocksAtOnce];
  _mm_store_ps(inverse, _mm_div_ps(_mm_set1_ps(127.0f), largest));
  __m256i q[kBlocksAtOnce];
  for (int i = 0; i < kBlocksAtOnce; ++i) q[i] = to_integers(x + i * kBlock, _mm256_broadcast_ss(inverse + i));
  const __m256i halves = _mm256_hadd_epi32(_mm256_hadd_epi32(sums_of_four(q[0]), sums_of_four(q[1])),
                                           _mm256_hadd_epi32(sums_of_four(q[2]), sums_of_four(q[3])));
  const __m128i first = _mm256_castsi256_si128(halves), second = _mm256_extracti128_si256(halves, 1);

  // d, d_sum and both half sums of four blocks, transposed. A fourth word of each fills the vector, and q goes over it.
  const __m128 d = _mm_div_ps(largest, _mm_set1_ps(127.0f));
  const __m128 d_sum = _mm_mul_ps(d, _mm_cvtepi32_ps(_mm_add_epi32(first, second)));
  const __m128 half_sums = _mm_castsi128_ps(_mm_blend_epi16(first, _mm_slli_epi32(second, 16), 0xaa));
  const __m128 scales_low = _mm_unpacklo_ps(d, d_sum), scales_high = _mm_unpackhi_ps(d, d_sum);
  const __m128 sums_low = _mm_unpacklo_ps(half_sums, half_sums), sums_high = _mm_unpackhi_ps(half_sums, half_sums);
  const __m128 heads[kBlocksAtOnce] = {_mm_movelh_ps(scales_low, sums_low), _mm_movehl_ps(sums_low, scales_low),
                                       _mm_movelh_ps(scales_high, sums_high), _mm_movehl_ps(sums_high, scales_high)};
  for (int i = 0; i < kBlocksAtOnce; ++i) {
    _mm_storeu_ps(reinterpret_cast<float*>(out + i), heads[i]);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out[i].q), q[i]);
  }
  return true;
}

// rest = x - d * q, by one fma each.
void subtract(const ActivationBlock& block, const float* x, float* rest) {
  const __m256 minus_d = _mm256_set1_ps(-block.d);
  for (int i = 0; i < kBlock; i += 8) {
    const __m128i q8 = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(block.q + i));
    const __m256 q = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q8));
    _mm256_storeu_ps(rest + i, _mm256_fmadd_ps(minus_d, q, _mm256_loadu_ps(x + i)));
  }
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

void subtract(const ActivationBlock& block, const float* x, float* rest) {
  for (int i = 0; i < kBlock; ++i) rest[i] = fma(-block.d, static_cast<float>(block.q[i]), x[i]);
}

#endif

void quantize_block(const float* x, ActivationBlock& block) {
  const std::uint32_t bits = max_magnitude(x);
  float largest;
  __builtin_memcpy(&largest, &bits, sizeof largest);
  if (bits >= kInfinity || largest < kSmallest) {
    block = ActivationBlock{};
    if (bits >= kInfinity) block.d = block.d_sum = __builtin_nanf("");
    return;
  }
  fill(x, 127.0f / largest, block);
  block.d = largest / 127.0f;
  block.d_sum = block.d * static_cast<float>(block.half_sum[0] + block.half_sum[1]);
}

}  // namespace

void quantize_row(const float* x, std::int64_t num_blocks, ActivationBlock* out) {
  std::int64_t b = 0;
#if QUIRE_ISA_AVX2
  for (; b + kBlocksAtOnce <= num_blocks; b += kBlocksAtOnce) {
    if (quantize_blocks(x + b * kBlock, out + b)) continue;
    for (int i = 0; i < kBlocksAtOnce; ++i) quantize_block(x + (b + i) * kBlock, out[b + i]);
  }
#endif
  for (; b < num_blocks; ++b) quantize_block(x + b * kBlock, out[b]);
}

void quantize_row_in_two_terms(const float* x, std::int64_t num_blocks, ActivationBlock* first, ActivationBlock* second) {
  constexpr std::int64_t kTogether = 4;
  for (std::int64_t b = 0; b < num_blocks; b += kTogether, x += kTogether * kBlock) {
    const std::int64_t count = num_blocks - b < kTogether ? num_blocks - b : kTogether;
    quantize_row(x, count, first + b);
    float rest[kTogether * kBlock];
    for (std::int64_t i = 0; i < count; ++i) subtract(first[b + i], x + i * kBlock, rest + i * kBlock);
    quantize_row(rest, count, second + b);
  }
}

}  // namespace quire::cpu::QUIRE_ISA
