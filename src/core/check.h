// QUIRE_CHECK: a broken invariant becomes Error(kInternal) naming the condition and the place. For bugs, not for input.
#pragma once

#include <fmt/format.h>

#include <string_view>

#include "quire/error.h"

namespace quire {

// The place is the caller's. (Builtins, for clang 14 has no std::source_location.)
[[noreturn]] void fail_check(std::string_view condition, std::string_view detail, const char* file = __builtin_FILE(),
                             int line = __builtin_LINE());

// Throws Error(code, formatted message).
template <typename... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace quire

#define QUIRE_CHECK(condition)             \
  do {                                     \
    if (!(condition)) [[unlikely]]         \
      ::quire::fail_check(#condition, {}); \
  } while (false)

#define QUIRE_CHECK_MSG(condition, ...)                            \
  do {                                                             \
    if (!(condition)) [[unlikely]]                                 \
      ::quire::fail_check(#condition, ::fmt::format(__VA_ARGS__)); \
  } while (false)
