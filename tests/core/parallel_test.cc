// ThreadPool: every index exactly once, exceptions, many tiny regions, destruction. Run under TSan too.
#include "core/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "quire/error.h"

namespace quire {
namespace {

class ThreadPoolTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, testing::Range(1, 9));

TEST_P(ThreadPoolTest, CoversEveryIndexOnceInPiecesOfTheGrain) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.num_threads(), GetParam());
  for (const std::int64_t count : {0, 1, 2, 7, 64, 1000}) {
    for (const std::int64_t grain : {0, 1, 3, 64, 5000}) {
      std::vector<std::atomic<int>> hits(static_cast<std::size_t>(count));
      pool.parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end, int thread) {
        EXPECT_LT(begin, end);
        EXPECT_LE(end - begin, std::max<std::int64_t>(grain, 1));
        EXPECT_GE(thread, 0);
        EXPECT_LT(thread, GetParam());
        for (std::int64_t i = begin; i < end; ++i) ++hits.at(static_cast<std::size_t>(i));
      });
      for (const std::atomic<int>& hit : hits) ASSERT_EQ(hit, 1) << "count " << count << " grain " << grain;
    }
  }
}

// The memory that workers wrote is visible to the caller, and what the caller wrote between regions to the workers.
TEST_P(ThreadPoolTest, ManyTinyRegionsSeeEachOthersWrites) {
  ThreadPool pool(GetParam());
  std::vector<std::int64_t> cells(16, 0);
  std::int64_t step = 0;
  for (int region = 0; region < 5000; ++region) {
    step = region;
    pool.parallel_for(16, 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t i = begin; i < end; ++i) cells[static_cast<std::size_t>(i)] += step;
    });
  }
  for (const std::int64_t cell : cells) EXPECT_EQ(cell, std::int64_t{5000} * 4999 / 2);
}

TEST_P(ThreadPoolTest, RethrowsTheExceptionAfterAllHaveEndedAndStaysUsable) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 100; ++round) {
    std::atomic<int> inside = 0;
    std::atomic<int> calls = 0;
    const auto body = [&](std::int64_t begin, std::int64_t, int) {
      ++inside;
      ++calls;
      if (begin == 3) {
        --inside;
        throw std::out_of_range("three");
      }
      --inside;
    };
    EXPECT_THROW(pool.parallel_for(1000, 1, body), std::out_of_range);
    EXPECT_EQ(inside, 0);
    EXPECT_LE(calls, 1000);
  }
  std::atomic<int> sum = 0;
  pool.parallel_for(10, 1, [&](std::int64_t begin, std::int64_t, int) { sum += static_cast<int>(begin); });
  EXPECT_EQ(sum, 45);
}

TEST_P(ThreadPoolTest, TwoThreadsNeverShareAThreadIndex) {
  ThreadPool pool(GetParam());
  std::vector<std::atomic<int>> owners(static_cast<std::size_t>(GetParam()));
  for (int region = 0; region < 500; ++region) {
    pool.parallel_for(64, 1, [&](std::int64_t, std::int64_t, int thread) {
      std::atomic<int>& owner = owners[static_cast<std::size_t>(thread)];
      EXPECT_EQ(owner.fetch_add(1), 0);
      for (volatile int busy = 0; busy < 500;) busy = busy + 1;  // so that the others are inside at the same time
      owner.fetch_sub(1);
    });
  }
}

// Sleeping workers wake: with a body that only ends when two threads are inside, the region ends.
TEST(ThreadPool, WakesSleepersWhenThereIsWork) {
  ThreadPool pool(2);
  for (int region = 0; region < 20 && !HasFailure(); ++region) {
    std::this_thread::sleep_for(std::chrono::milliseconds(region % 2 == 0 ? 5 : 0));
    std::atomic<int> arrived = 0;
    pool.parallel_for(2, 1, [&](std::int64_t, std::int64_t, int) {
      ++arrived;
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (arrived < 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
      EXPECT_EQ(arrived, 2);
    });
  }
}

TEST(ThreadPool, DestroysIdleAndFreshPools) {
  for (int round = 0; round < 50; ++round) {
    ThreadPool fresh(4);
    ThreadPool used(3);
    used.parallel_for(8, 1, [](std::int64_t, std::int64_t, int) {});
  }
}

TEST(ThreadPool, NestedRegionIsAnInternalErrorNotADeadlock) {
  ThreadPool pool(2);
  try {
    pool.parallel_for(4, 1,
                      [&](std::int64_t, std::int64_t, int) { pool.parallel_for(1, 1, [](std::int64_t, std::int64_t, int) {}); });
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
  }
  pool.parallel_for(4, 1, [](std::int64_t, std::int64_t, int) {});
}

TEST(ThreadPool, HugeCountsDoNotOverflow) {
  ThreadPool pool(2);
  std::atomic<int> calls = 0;
  const std::int64_t huge = INT64_MAX / 4;
  pool.parallel_for(huge, huge / 2, [&](std::int64_t, std::int64_t, int) { ++calls; });
  EXPECT_EQ(calls, 3);
}

TEST(ThreadPool, DefaultTakesTheCoresOfTheAffinityMask) {
  const ThreadPool pool;
  EXPECT_GE(pool.num_threads(), 1);
  EXPECT_LE(pool.num_threads(), static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
}

TEST(ThreadPool, RefusesAnAbsurdNumberOfThreads) {
  EXPECT_THROW(ThreadPool pool(-1), Error);
  EXPECT_THROW(ThreadPool pool(100000), Error);
}

}  // namespace
}  // namespace quire
