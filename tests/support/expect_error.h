// EXPECT_ERROR(statement, code, "part of the message"): the statement throws quire::Error with this code, and says so.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "quire/error.h"

namespace quire::test {

// The error that `function` throws; reports a failure if it throws none.
template <typename Function>
Error error_of(Function function, const char* text) {
  try {
    function();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error from " << text;
  return Error(ErrorCode::kInternal, "no error");
}

// The message of the Error that `body` throws; its code is checked.
template <typename Body>
std::string error_of(ErrorCode code, Body body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no Error thrown";
  return {};
}

}  // namespace quire::test

#define EXPECT_ERROR(statement, expected_code, part)                                                \
  do {                                                                                              \
    const ::quire::Error error = ::quire::test::error_of([&] { (void)(statement); }, #statement);   \
    EXPECT_EQ(::quire::to_string(error.code()), ::quire::to_string(expected_code)) << error.what(); \
    EXPECT_THAT(error.what(), ::testing::HasSubstr(part));                                          \
  } while (false)
