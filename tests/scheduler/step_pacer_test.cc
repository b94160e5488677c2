#include "scheduler/step_pacer.h"

#include <gtest/gtest.h>

namespace quire::testing {
namespace {

TEST(StepPacer, LimitsNothingWithoutALimitOrWithoutAStreamThatWaits) {
  StepPacer unlimited(0);
  unlimited.observe(4, 100, 1'000'000);
  EXPECT_EQ(unlimited.prompt_tokens(4), StepPacer::kUnlimited);
  StepPacer pacer(10'000);
  pacer.observe(4, 100, 1'000'000);
  EXPECT_EQ(pacer.prompt_tokens(0), StepPacer::kUnlimited);
}

TEST(StepPacer, BeginsSmallAndFillsTheTimeThatDecodeLeaves) {
  StepPacer pacer(50'000);
  EXPECT_EQ(pacer.prompt_tokens(1), StepPacer::kLeastChunk);
  pacer.observe(1, 0, 10'000);
  pacer.observe(1, 16, 10'000 + 16 * 500);
  EXPECT_EQ(pacer.prompt_tokens(1), 80);  // 40 ms at 0.5 ms each
  pacer.observe(1, 0, 50'000);            // decode slows down: (50 - 10) / 4 more
  EXPECT_EQ(pacer.prompt_tokens(1), 60);
}

TEST(StepPacer, LearnsFromPromptsAlone) {
  StepPacer pacer(50'000);
  pacer.observe(0, 512, 512 * 1000);
  EXPECT_EQ(pacer.prompt_tokens(3), 50);
}

TEST(StepPacer, AnOutlierIsForgotten) {
  StepPacer pacer(50'000);
  pacer.observe(0, 100, 100 * 1000);
  pacer.observe(0, 100, 100 * 9000);
  EXPECT_EQ(pacer.prompt_tokens(1), StepPacer::kLeastChunk);
  for (int i = 0; i < 30; ++i) pacer.observe(0, 100, 100 * 1000);
  EXPECT_EQ(pacer.prompt_tokens(1), 49);
}

TEST(StepPacer, AStepFasterThanDecodeAloneStillCostsSomething) {
  StepPacer pacer(50'000);
  pacer.observe(8, 0, 40'000);
  pacer.observe(1, 16, 8'000);  // the streams have gone meanwhile
  EXPECT_EQ(pacer.prompt_tokens(1), 160);
}

}  // namespace
}  // namespace quire::testing
