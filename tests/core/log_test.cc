// What QUIRE_LOG_LEVEL does. The logger is made once a process, so each case is a process of its own.
#include "core/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <cstdlib>

namespace quire {
namespace {

[[noreturn]] void warn_and_trace_under(const char* level) {
  setenv("QUIRE_LOG_LEVEL", level, 1);
  logger().warn("a warning");
  logger().trace("a trace");
  std::fputs("the end\n", stderr);
  std::exit(0);
}

TEST(Log, TheLevelIsThatOfTheEnvironment) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(warn_and_trace_under("trace"), ::testing::ExitedWithCode(0), "a warning\nquire .trace. a trace\nthe end");
  EXPECT_EXIT(warn_and_trace_under("warn"), ::testing::ExitedWithCode(0), "a warning\nthe end");
  EXPECT_EXIT(warn_and_trace_under("off"), ::testing::ExitedWithCode(0), "^the end");
}

TEST(Log, AnUnknownLevelIsNamedAndChangesNothing) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(warn_and_trace_under("verbose"), ::testing::ExitedWithCode(0),
              "QUIRE_LOG_LEVEL is \"verbose\".*\nquire .warning. a warning\nthe end");
}

}  // namespace
}  // namespace quire
