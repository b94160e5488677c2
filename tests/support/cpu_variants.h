// What the tests of CPU kernels share: one suite per op, run once per instruction set (visibly skipped where the machine lacks
// it), reproducible numbers, and comparisons bit by bit.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cpu/kernels.h"

namespace quire::testing {

// Every variant of the CPU kernels. "avx512_simde": the AVX-512 sources on a machine without it (simde_avx512.h).
#define QUIRE_CPU_VARIANTS "portable", "avx2", "avx512", "avx512_simde"
// Variants that differ from AVX-512 in matmul alone. "amx_model": on a model of the tiles (amx_model.h), for machines without
// them.
#define QUIRE_CPU_MATMUL_VARIANTS "amx", "amx_model"

// nullptr if this machine does not run it, or this build lacks it.
const cpu::KernelTable* find_variant(std::string_view name);

class CpuKernelTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (find_variant(GetParam()) == nullptr) GTEST_SKIP() << "this machine or build has no " << GetParam();
  }
  const cpu::KernelTable& table() const { return *find_variant(GetParam()); }
  static const cpu::KernelTable& portable() { return *cpu::find_kernels("portable"); }
};

inline std::string variant_name(const ::testing::TestParamInfo<const char*>& param) { return param.param; }

#define QUIRE_INSTANTIATE_VARIANTS(suite) \
  INSTANTIATE_TEST_SUITE_P(Cpu, suite, ::testing::Values(QUIRE_CPU_VARIANTS), ::quire::testing::variant_name)

// SplitMix64's mixing of a key: a number for a name, so that the same element has the same value in any layout.
inline std::uint64_t hash(std::uint64_t key) {
  key += 0x9e3779b97f4a7c15u;
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9u;
  key = (key ^ (key >> 27)) * 0x94d049bb133111ebu;
  return key ^ (key >> 31);
}

// Roughly normal: mean 0, standard deviation `scale`.
inline float noise(std::uint64_t key, float scale = 1.0f) {
  float sum = 0.0f;
  for (std::uint64_t i = 0; i < 4; ++i) sum += static_cast<float>(hash(key * 4 + i) >> 40) * 0x1p-24f;
  return (sum - 2.0f) * std::sqrt(3.0f) * scale;
}

inline std::vector<float> noises(std::size_t count, std::uint64_t seed, float scale = 1.0f) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = noise(hash(seed) + i, scale);
  return values;
}

// Equal bits, except that any NaN equals any NaN.
inline bool same_bits(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

inline ::testing::AssertionResult same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " against " << b.size() << " elements";
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!same_bits(a[i], b[i])) return ::testing::AssertionFailure() << "element " << i << ": " << a[i] << " against " << b[i];
  }
  return ::testing::AssertionSuccess();
}

// |a - b| <= absolute + relative |b| everywhere; NaN is far from everything.
inline ::testing::AssertionResult near(const std::vector<float>& a, const std::vector<double>& b, double relative,
                                       double absolute) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " against " << b.size() << " elements";
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(std::abs(a[i] - b[i]) <= absolute + relative * std::abs(b[i]))) {
      return ::testing::AssertionFailure() << "element " << i << ": " << a[i] << " against " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace quire::testing
