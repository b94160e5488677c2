// The emulator's counts of memory traffic, for accesses that one can count by hand; the same in every schedule.
#include "tests/simt/traffic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "simt/device_memory.h"
#include "simt/emulator.h"

namespace quire::cuda {
namespace {

class Traffic : public testing::TestWithParam<simt::Options> {
 protected:
  static simt::Options counting(simt::Options options) {
    options.count_traffic = true;
    return options;
  }
  // What the hooks build sees, any build counts for the named form alone.
  static std::vector<Form> forms() {
    return simt::has_hooks() ? std::vector<Form>{Form::kNamed, Form::kPlain} : std::vector<Form>{Form::kNamed};
  }
  void SetUp() override { (void)simt::take_statistics(); }

  simt::ScopedOptions scope_{counting(GetParam())};
  simt::DeviceBuffer<float> x_{std::vector<float>(4096, 1.0f)};
  simt::DeviceBuffer<float> y_{4096};
};
INSTANTIATE_TEST_SUITE_P(Schedules, Traffic, testing::ValuesIn(simt::all_schedules().begin(), simt::all_schedules().end()));

TEST_P(Traffic, SectorsOfGlobalLoads) {
  const struct {
    int first, step, sectors;
  } cases[] = {{0, 1, 4}, {8, 1, 4}, {1, 1, 5}, {0, 2, 8}, {0, 8, 32}, {0, 64, 32}, {5, 0, 1}};
  for (const Form form : forms()) {
    for (const auto& c : cases) {
      load_strided(form, x_.data(), y_.data(), c.first, c.step);
      const simt::Statistics seen = simt::take_statistics();
      EXPECT_EQ(seen.global_loads.num_requests, 1);
      EXPECT_EQ(seen.global_loads.num_sectors, c.sectors) << c.first << " " << c.step;
      EXPECT_EQ(seen.global_loads.num_bytes, 128);
      EXPECT_EQ(seen.global_stores.num_sectors, 4);
      EXPECT_EQ(seen.shared_loads.num_requests + seen.shared_stores.num_requests, 0);
    }
  }
}

TEST_P(Traffic, SectorsOfGlobalStores) {
  for (const Form form : forms()) {
    for (const auto& [step, sectors] : {std::pair{1, 4}, {2, 8}, {3, 12}, {16, 32}}) {
      store_strided(form, y_.data(), 0, step);
      const simt::Statistics seen = simt::take_statistics();
      EXPECT_EQ(seen.global_stores.num_requests, 1);
      EXPECT_EQ(seen.global_stores.num_sectors, sectors) << step;
      EXPECT_EQ(seen.global_loads.num_requests, 0);
    }
  }
}

TEST_P(Traffic, BankConflicts) {
  const struct { int step, phases; } cases[] = {{1, 1}, {2, 2}, {3, 1}, {4, 4}, {8, 8}, {32, 32}, {33, 1}, {0, 1}};
  for (const Form form : forms()) {
    for (const auto& c : cases) {
      exchange_strided(form, y_.data(), c.step);
      const simt::Statistics seen = simt::take_statistics();
      for (const simt::SharedTraffic& traffic : {seen.shared_loads, seen.shared_stores}) {
        EXPECT_EQ(traffic.num_requests, 1);
        EXPECT_EQ(traffic.num_phases, c.phases) << "step " << c.step;
        EXPECT_EQ(traffic.num_ideal_phases, 1);
      }
    }
  }
}

TEST_P(Traffic, BankConflictsOfVectors) {
  for (const auto& [step, phases] : {std::pair{1, 4}, {2, 8}, {3, 4}, {8, 32}}) {  // quarters of a warp at a time
    exchange_vectors(y_.data(), step);
    const simt::Statistics seen = simt::take_statistics();
    EXPECT_EQ(seen.shared_stores.num_phases, phases) << step;
    EXPECT_EQ(seen.shared_loads.num_phases, phases) << step;
    EXPECT_EQ(seen.shared_loads.num_ideal_phases, 4);
  }
}

TEST_P(Traffic, SwizzleOfMatrixRows) {
  const simt::DeviceBuffer<std::uint32_t> r(128);
  for (const bool swizzled : {true, false}) {
    load_swizzled(x_.data(), r.data(), swizzled);
    const simt::Statistics seen = simt::take_statistics();
    EXPECT_EQ(seen.matrix_loads.num_requests, 1);
    EXPECT_EQ(seen.matrix_loads.num_phases, swizzled ? 4 : 32);
    EXPECT_EQ(seen.matrix_loads.num_ideal_phases, 4);
    EXPECT_EQ(seen.copy_reads.num_requests, 32);
    EXPECT_EQ(seen.copy_reads.num_sectors, 32 * 4);
    EXPECT_EQ(seen.copy_reads.num_bytes, 32 * 128);
    EXPECT_EQ(seen.copy_writes.num_phases, 32);
    EXPECT_EQ(seen.copy_writes.num_ideal_phases, 32);
    EXPECT_EQ(seen.num_async_copies, 256);
  }
}

TEST_P(Traffic, ReadsPerByte) {
  for (const Form form : forms()) {
    const simt::ReadWatch watch(x_.data(), 128 * sizeof(float));
    read_once(form, x_.data(), y_.data());
    for (std::size_t i = 0; i < watch.num_reads().size(); ++i) {
      const std::size_t element = i / sizeof(float);
      ASSERT_EQ(watch.num_reads()[i], element < 32 || (element >= 64 && element < 96) ? 1 : 0) << "element " << element;
    }
    read_once(form, x_.data(), y_.data());
    EXPECT_EQ(watch.num_reads()[0], 2);
    EXPECT_EQ(y_[0], 2.0f);
  }
}

TEST_P(Traffic, NothingIsCountedUnasked) {
  const simt::ScopedOptions quiet(GetParam());
  exchange_strided(Form::kNamed, y_.data(), 1);
  const simt::Statistics seen = simt::take_statistics();
  EXPECT_EQ(seen.shared_loads.num_requests, 0);
  EXPECT_EQ(seen.num_launches, 1);
  EXPECT_EQ(seen.num_blocks, 1);
  EXPECT_EQ(seen.num_warp_operations, 1);
}

}  // namespace
}  // namespace quire::cuda
