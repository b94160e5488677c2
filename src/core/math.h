// Small integer arithmetic, and arithmetic that says when it overflows.
#pragma once

#include <concepts>
#include <optional>

namespace quire {

template <std::integral T>
constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

template <std::integral T>
constexpr T round_up(T a, T multiple) {
  return ceil_div(a, multiple) * multiple;
}

template <std::integral T>
constexpr std::optional<T> checked_mul(T a, T b) {
  T r{};
  if (__builtin_mul_overflow(a, b, &r)) return std::nullopt;
  return r;
}

template <std::integral T>
constexpr std::optional<T> checked_add(T a, T b) {
  T r{};
  if (__builtin_add_overflow(a, b, &r)) return std::nullopt;
  return r;
}

template <std::unsigned_integral T>
constexpr bool is_power_of_two(T a) {
  return a != 0 && (a & (a - 1)) == 0;
}

}  // namespace quire
