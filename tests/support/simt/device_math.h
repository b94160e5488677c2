// CUDA's arithmetic functions that C's <math.h> does not have. The fast ones (__expf, ...) are exact here up to rounding, a GPU's
// are not; tests allow for either.
#pragma once

#include <math.h>

#include <bit>
#include <cstdint>

// ---- bits

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int i = 0; i < 32; ++i) reversed |= (x >> i & 1u) << (31 - i);
  return reversed;
}
inline unsigned __umulhi(unsigned x, unsigned y) { return static_cast<unsigned>(std::uint64_t{x} * y >> 32); }
inline int __mulhi(int x, int y) { return static_cast<int>(std::int64_t{x} * y >> 32); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
// To nearest even.
inline int __float2int_rn(float x) { return static_cast<int>(lrintf(x)); }

// ---- minima and maxima; mixed signs compare as unsigned, as in CUDA

constexpr int min(int x, int y) { return y < x ? y : x; }
constexpr unsigned min(unsigned x, unsigned y) { return y < x ? y : x; }
constexpr unsigned min(int x, unsigned y) { return min(static_cast<unsigned>(x), y); }
constexpr unsigned min(unsigned x, int y) { return min(x, static_cast<unsigned>(y)); }
constexpr long min(long x, long y) { return y < x ? y : x; }
constexpr long long min(long long x, long long y) { return y < x ? y : x; }
constexpr unsigned long min(unsigned long x, unsigned long y) { return y < x ? y : x; }
constexpr unsigned long long min(unsigned long long x, unsigned long long y) { return y < x ? y : x; }
inline float min(float x, float y) { return fminf(x, y); }
constexpr int max(int x, int y) { return x < y ? y : x; }
constexpr unsigned max(unsigned x, unsigned y) { return x < y ? y : x; }
constexpr unsigned max(int x, unsigned y) { return max(static_cast<unsigned>(x), y); }
constexpr unsigned max(unsigned x, int y) { return max(x, static_cast<unsigned>(y)); }
constexpr long max(long x, long y) { return x < y ? y : x; }
constexpr long long max(long long x, long long y) { return x < y ? y : x; }
constexpr unsigned long max(unsigned long x, unsigned long y) { return x < y ? y : x; }
constexpr unsigned long long max(unsigned long long x, unsigned long long y) { return x < y ? y : x; }
inline float max(float x, float y) { return fmaxf(x, y); }

// ---- floats

inline float rsqrtf(float x) { return static_cast<float>(1.0 / sqrt(static_cast<double>(x))); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
