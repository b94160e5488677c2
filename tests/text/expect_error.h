// expect_error: a call must throw an Error of a certain code whose message names a certain thing.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "quire/error.h"

namespace quire::testing {

template <typename Call>
void expect_error(ErrorCode code, const std::string& part, Call&& call) {
  try {
    call();
    ADD_FAILURE() << "no error; expected one with \"" << part << '"';
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    EXPECT_THAT(e.what(), ::testing::HasSubstr(part));
  }
}

}  // namespace quire::testing
