#include "core/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/tensor.h"
#include "tests/support/expect_error.h"

namespace quire {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Check, NamesConditionDetailAndPlace) {
  const int rank = 7;
  EXPECT_ERROR([] { QUIRE_CHECK(1 > 2); }(), ErrorCode::kInternal, "check failed: 1 > 2 (");
  EXPECT_ERROR([&] { QUIRE_CHECK_MSG(rank < 5, "rank {}", rank); }(), ErrorCode::kInternal, "check failed: rank < 5: rank 7 (");
  EXPECT_NO_THROW([&] { QUIRE_CHECK(rank == 7); }());
}

// What a user reports must not tell where on whose machine quire was built.
TEST(Check, PlacesAreRelativeToTheSources) {
  EXPECT_ERROR([] { QUIRE_CHECK(false); }(), ErrorCode::kInternal, "(tests/core/check_test.cc:");
  const auto broken = [] { return TensorView(nullptr, DType::kF32, {}); };
  EXPECT_ERROR(broken(), ErrorCode::kInternal, "(src/core/tensor.cc:");
  EXPECT_THAT(test::error_of(broken, "broken()").what(), Not(HasSubstr(QUIRE_SOURCE_DIR)));
}

}  // namespace
}  // namespace quire
