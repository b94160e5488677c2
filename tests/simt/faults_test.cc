// Every kind of fault that the emulator is there to find, planted one at a time, in every schedule; and none where there is none.
#include "tests/simt/faults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <ostream>
#include <string>
#include <vector>

#include "simt/device_memory.h"
#include "simt/emulator.h"
#include "simt/fiber.h"

namespace quire::cuda {

void PrintTo(const PlantedFault& fault, std::ostream* out);
void PrintTo(const PlantedFault& fault, std::ostream* out) { *out << fault.name; }

namespace {

#if defined(SIMT_ASAN)
constexpr bool kAsan = true;
#else
constexpr bool kAsan = false;
#endif

struct Outcome {
  std::string error;  // empty: none
  bool right = false;
};

Outcome run(const PlantedFault& fault, bool faulty, const simt::Options& options) {
  const simt::ScopedOptions scope(options);
  std::vector<float> values(kFaultSize);
  std::iota(values.begin(), values.end(), 0.0f);
  const simt::DeviceBuffer<float> x(values);
  const simt::DeviceBuffer<float> y(kFaultSize);
  Outcome outcome;
  try {
    fault.run(faulty, x.data(), y.data());
  } catch (const simt::Error& error) {
    outcome.error = error.what();
  }
  for (float& value : values) value += 1;
  outcome.right = y.to_host() == values;
  return outcome;
}

class Faults : public testing::TestWithParam<PlantedFault> {};

TEST_P(Faults, IsFound) {
  const PlantedFault& fault = GetParam();
  if (fault.finding == Finding::kStray && kAsan) {
    EXPECT_DEATH(run(fault, true, simt::Options{}), "AddressSanitizer|runtime error");
    return;
  }
  bool must_throw = fault.finding == Finding::kError || fault.finding == Finding::kStray;
  if (simt::has_hooks() && fault.finding != Finding::kWrongResult) must_throw = true;
  bool always_right = true;
  for (const simt::Options& options : simt::all_schedules()) {
    SCOPED_TRACE(testing::Message() << options);
    const Outcome outcome = run(fault, true, options);
    if (must_throw) {
      EXPECT_THAT(outcome.error, testing::ContainsRegex(fault.message));
      EXPECT_NE(outcome.error, "");
      if (fault.finding == Finding::kRace || fault.finding == Finding::kHiddenRace) {
        EXPECT_THAT(outcome.error, testing::ContainsRegex("at faults.cu:[0-9]+|addr2line -e .* names the line"));
      }
    } else {
      EXPECT_EQ(outcome.error, "");
      always_right = always_right && outcome.right;
    }
  }
  if (!must_throw && fault.finding != Finding::kHiddenRace) {
    EXPECT_FALSE(always_right) << "no schedule shows it";
  }
}

TEST_P(Faults, NothingIsFoundWithoutIt) {
  for (const simt::Options& options : simt::all_schedules()) {
    SCOPED_TRACE(testing::Message() << options);
    const Outcome outcome = run(GetParam(), false, options);
    EXPECT_EQ(outcome.error, "");
    EXPECT_TRUE(outcome.right);
  }
}

std::string name_of(const testing::TestParamInfo<PlantedFault>& fault) { return fault.param.name; }
INSTANTIATE_TEST_SUITE_P(Planted, Faults, testing::ValuesIn(planted_faults().begin(), planted_faults().end()), name_of);

const PlantedFault& fault_named(const std::string& name) {
  const auto& faults = planted_faults();
  return *std::find_if(faults.begin(), faults.end(), [&](const PlantedFault& fault) { return fault.name == name; });
}

TEST(FaultReports, DeadlockNamesBothPlaces) {
  const std::string error = run(fault_named("waits_in_two_places"), true, simt::Options{}).error;
  EXPECT_THAT(error, testing::ContainsRegex("1 thread\\(s\\), the first is 5, wait in __syncthreads at faults.cu:[0-9]+"));
  EXPECT_THAT(error, testing::ContainsRegex("31 thread\\(s\\), the first is 0, wait in __shfl_sync at faults.cu:[0-9]+"));
}

// After a fault the emulator is as good as new, down to the stacks that were given up.
TEST(FaultReports, NothingIsLeftBehind) {
  for (const PlantedFault& fault : planted_faults()) {
    if (fault.finding != Finding::kError) continue;
    EXPECT_NE(run(fault, true, simt::Options{}).error, "") << fault.name;
    for (const PlantedFault& next : {planted_faults().back(), fault_named("overflows_its_stack")}) {
      const Outcome outcome = run(next, false, simt::Options{});
      EXPECT_TRUE(outcome.right && outcome.error.empty()) << next.name << " after " << fault.name << ": " << outcome.error;
    }
  }
}

}  // namespace
}  // namespace quire::cuda
