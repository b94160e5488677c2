// The two inner loops of attention: scores of some rows of queries with consecutive keys, and weighted sums of consecutive
// values, for kRows rows of one KV head at once, so that a key or value is loaded and widened once for all of them. Keys and
// values are read as the pool stores them or as floats widened before. Orders: docs/numerics.md, "Attention", 1 and 6.
#pragma once

#include <type_traits>

#include "kernels/cpu/simd.h"
#if QUIRE_ISA_AVX2
#include "kernels/cpu/float_dots.h"
#endif

namespace quire::cpu::QUIRE_ISA {

struct FromF32 {
  using Stored = float;
  static F32x16 load(const float* p) { return F32x16::load(p); }
};
struct FromF16 {
  using Stored = std::uint16_t;
  static F32x16 load(const std::uint16_t* p) { return F32x16::load_f16(p); }
};
struct FromBf16 {
  using Stored = std::uint16_t;
  static F32x16 load(const std::uint16_t* p) { return F32x16::load_bf16(p); }
};

// Rows of a matrix of floats.
struct FloatRows {
  float* first;
  std::int64_t stride;
  float* row(std::int64_t r) const { return first + r * stride; }
};

// Keys or values of `count` positions; their heads fill whole vectors.
template <typename From>
struct StoredRows {
  const typename From::Stored* first;
  std::int64_t stride;
  int count;
};

// What the registers hold: sums of kRows rows and kKeys keys, or of kRows rows and kVectors vectors of an output.
inline constexpr int kMostRows = QUIRE_ISA_AVX512 ? 4 : 3;
inline constexpr int kMost = 4;  // rows, keys, vectors
template <int kRows>
inline constexpr int kKeys = QUIRE_ISA_AVX512 || kRows == 1 ? 4 : 2;
template <int kRows>
inline constexpr int kVectors = QUIRE_ISA_AVX512 || kRows == 1 ? 4 : 2;

#if QUIRE_ISA_AVX2

// dots[r * kCount + j] = q[r] . key[j] in lanes, for keys that are floats.
template <int kRows, int kCount>
[[gnu::always_inline]] inline void sum_products(FloatRows q, const float* key, std::int64_t key_stride, std::int64_t size,
                                                F32x16* dots) {
  LaneSums sums{};
  for (std::int64_t d = 0; d < size; d += kLanes) add_dots<kCount, kRows>(key + d, key_stride, q.first + d, q.stride, sums);
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kCount; ++j) dots[r * kCount + j] = joined(sums[r][j]);
  }
}

#endif

// scores[r][j] = q[r] . key[j], for keys from `key` on.
template <typename From, int kRows, int kCount>
[[gnu::always_inline]] inline void score_keys(FloatRows q, const typename From::Stored* key, std::int64_t key_stride,
                                              std::int64_t size, FloatRows scores) {
  constexpr std::size_t kSums = (std::size_t{kRows} * std::size_t{kCount} + 3) / 4 * 4;  // reduced by fours
  F32x16 sums[kSums];
  for (F32x16& sum : sums) sum = F32x16::zero();
#if QUIRE_ISA_AVX2
  if constexpr (std::is_same_v<From, FromF32>) {
    sum_products<kRows, kCount>(q, key, key_stride, size, sums);
  } else
#endif
  {
    for (std::int64_t d = 0; d < size; d += kLanes) {
      F32x16 keys[kMost];
      for (int j = 0; j < kCount; ++j) keys[j] = From::load(key + j * key_stride + d);
      for (int r = 0; r < kRows; ++r) {
        const F32x16 query = F32x16::load(q.row(r) + d);
        for (int j = 0; j < kCount; ++j) sums[r * kCount + j] = fma(query, keys[j], sums[r * kCount + j]);
      }
    }
  }
  float dots[kSums];
  for (std::size_t i = 0; i < kSums; i += 4) reduce_add4(sums + i, dots + i);
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kCount; ++j) scores.row(r)[j] = dots[r * kCount + j];
  }
}

// scores[r][j] = q[r] . keys[j] for every key.
template <typename From, int kRows>
void score_rows(FloatRows q, StoredRows<From> keys, std::int64_t size, FloatRows scores) {
  int j = 0;
  for (; j + kKeys<kRows> <= keys.count; j += kKeys<kRows>) {
    score_keys<From, kRows, kKeys<kRows>>(q, keys.first + j * keys.stride, keys.stride, size, {scores.first + j, scores.stride});
  }
  for (; j < keys.count; ++j) {
    score_keys<From, kRows, 1>(q, keys.first + j * keys.stride, keys.stride, size, {scores.first + j, scores.stride});
  }
}

// out[r][d] = fma(weights[r][j], values[j][d], out[r][d]) for every value in ascending order, d from 0 to 16 kCount.
template <typename From, int kRows, int kCount>
[[gnu::always_inline]] inline void add_weighted(FloatRows weights, StoredRows<From> values, FloatRows out) {
  F32x16 sums[kMost][kMost];
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kCount; ++i) sums[r][i] = F32x16::load(out.row(r) + i * kLanes);
  }
  const auto* value = values.first;
  for (int j = 0; j < values.count; ++j, value += values.stride) {
    F32x16 v[kMost];
    for (int i = 0; i < kCount; ++i) v[i] = From::load(value + i * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const F32x16 weight = F32x16::set1(weights.row(r)[j]);
      for (int i = 0; i < kCount; ++i) sums[r][i] = fma(weight, v[i], sums[r][i]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kCount; ++i) sums[r][i].store(out.row(r) + i * kLanes);
  }
}

template <typename From, int kRows>
void weigh_rows(FloatRows weights, StoredRows<From> values, std::int64_t size, FloatRows out) {
  constexpr std::int64_t kWide = kVectors<kRows> * kLanes;
  std::int64_t d = 0;
  for (; d + kWide <= size; d += kWide) {
    add_weighted<From, kRows, kVectors<kRows>>(weights, {values.first + d, values.stride, values.count},
                                               {out.first + d, out.stride});
  }
  if constexpr (kWide > 2 * kLanes) {
    for (; d + 2 * kLanes <= size; d += 2 * kLanes) {
      add_weighted<From, kRows, 2>(weights, {values.first + d, values.stride, values.count}, {out.first + d, out.stride});
    }
  }
  for (; d < size; d += kLanes) {
    add_weighted<From, kRows, 1>(weights, {values.first + d, values.stride, values.count}, {out.first + d, out.stride});
  }
}

// Calls body.operator()<kRows>(first row) on pieces of [0, num_rows), none larger than kMostRows, all of about the same size.
template <typename Body>
void for_each_rows(std::int64_t num_rows, const Body& body) {
  const std::int64_t pieces = (num_rows + kMostRows - 1) / kMostRows;
  for (std::int64_t piece = 0; piece < pieces; ++piece) {
    const std::int64_t row = piece * num_rows / pieces;
    switch ((piece + 1) * num_rows / pieces - row) {
      case 1:
        body.template operator()<1>(row);
        break;
      case 2:
        body.template operator()<2>(row);
        break;
      case 3:
        body.template operator()<3>(row);
        break;
      default:
        body.template operator()<kMostRows>(row);
    }
  }
}

}  // namespace quire::cpu::QUIRE_ISA
