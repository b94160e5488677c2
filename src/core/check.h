// QUIRE_CHECK: a broken invariant becomes Error(kInternal) naming the condition and the place. For bugs, not for input.
#pragma once

#include <fmt/format.h>

#include <source_location>
#include <string_view>

#include "quire/error.h"

namespace quire {

[[noreturn]] void fail_check(std::string_view condition, std::string_view detail,
                             std::source_location where = std::source_location::current());

// Throws Error(code, formatted message).
template <typename... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace quire

#define QUIRE_CHECK(condition)                                        \
  do {                                                                \
    if (!(condition)) [[unlikely]] ::quire::fail_check(#condition, {}); \
  } while (false)

#define QUIRE_CHECK_MSG(condition, ...)                                                          \
  do {                                                                                           \
    if (!(condition)) [[unlikely]] ::quire::fail_check(#condition, ::fmt::format(__VA_ARGS__)); \
  } while (false)
