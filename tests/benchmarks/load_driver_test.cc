// run_load against a target that answers as told: when requests go out, what is written down, when a run is given up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <quire/error.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "benchmarks/serving/load_driver.h"

namespace quire::bench {
namespace {

using std::chrono::milliseconds;

// Answers each request after a time, on a thread of its own; a negative time: not before cancel_all().
class TimedTarget : public Target {
 public:
  explicit TimedTarget(std::function<milliseconds(std::size_t)> delay) : delay_(std::move(delay)) {}
  ~TimedTarget() override {
    for (std::thread& thread : threads_) thread.join();
  }

  Launch prepare(const PlannedRequest& planned) override {
    return [this, index = num_prepared_++, planned](AnswerSink sink) {
      if (++open_ > max_open_) max_open_ = open_.load();
      threads_.emplace_back([=, this] { answer(delay_(index), planned, sink); });
    };
  }

  void cancel_all() override {
    const std::lock_guard lock(mutex_);
    is_cancelled_ = true;
    changed_.notify_all();
  }

  int max_open() const { return max_open_; }
  std::size_t num_prepared() const { return num_prepared_; }

 private:
  void answer(milliseconds delay, const PlannedRequest& planned, const AnswerSink& sink) {
    Answer answer;
    {
      std::unique_lock lock(mutex_);
      const bool never = delay.count() < 0;
      if (changed_.wait_for(lock, never ? milliseconds(60'000) : delay, [&] { return is_cancelled_; }))
        answer.failure = Failure{"cancelled", "c"};
    }
    if (planned.output_tokens == 0) answer.failure = Failure{"bad", "told to fail"};
    answer.pieces.assign(static_cast<std::size_t>(planned.output_tokens), Clock::now());
    --open_;
    sink(std::move(answer));
  }

  std::function<milliseconds(std::size_t)> delay_;
  std::size_t num_prepared_ = 0;
  std::atomic<int> open_{0}, max_open_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_cancelled_ = false;
  std::vector<std::thread> threads_;
};

PlannedRequest planned(double due_s, int output_tokens = 1) {
  return {.due_s = due_s, .input_tokens = 3, .output_tokens = output_tokens};
}

TEST(LoadDriver, OpenLoopWaitsForNoAnswer) {
  TimedTarget target([](std::size_t) { return milliseconds(300); });
  const RunRecord run = run_load({planned(0), planned(0.01), planned(0.02), planned(0.03)}, target, {});
  EXPECT_FALSE(run.given_up);
  ASSERT_EQ(run.requests.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    const RequestRecord& request = run.requests[i];
    EXPECT_EQ(request.due_s, 0.01 * static_cast<double>(i));
    EXPECT_GE(request.sent_s, request.due_s);
    EXPECT_GE(request.end_s, request.sent_s + 0.3);
    EXPECT_EQ(request.end_s, request.piece_s.at(0));
    EXPECT_EQ(request.input_tokens, 3);
    EXPECT_FALSE(request.failure);
  }
  EXPECT_EQ(target.max_open(), 4);
}

// A target that blocks its generator delays what is sent, not when it was due: the wait is in the latency.
TEST(LoadDriver, LatenessOfTheGeneratorHidesNothing) {
  class Blocking : public Target {
   public:
    Launch prepare(const PlannedRequest&) override {
      return [](const AnswerSink& sink) {
        std::this_thread::sleep_for(milliseconds(60));
        sink({.pieces = {Clock::now()}});
      };
    }
    void cancel_all() override {}
  } target;
  const RunRecord run = run_load({planned(0), planned(0.001), planned(0.002)}, target, {});
  ASSERT_EQ(run.requests.size(), 3u);
  EXPECT_EQ(run.requests[2].due_s, 0.002);
  EXPECT_GE(run.requests[2].sent_s, 0.118) << "sent after the two before it";
  EXPECT_GE(run.requests[2].piece_s[0] - run.requests[2].due_s, 0.175);
}

TEST(LoadDriver, ClosedLoopKeepsItsStreamsBusy) {
  TimedTarget target([](std::size_t index) { return milliseconds(index % 3 == 0 ? 60 : 30); });
  std::vector<PlannedRequest> workload(20, planned(1e9));  // when they are due plays no part
  const RunRecord run = run_load(workload, target, {.num_streams = 3});
  EXPECT_EQ(run.requests.size(), 20u);
  EXPECT_EQ(target.max_open(), 3);
  for (const RequestRecord& request : run.requests) EXPECT_EQ(request.due_s, request.sent_s);
}

TEST(LoadDriver, MoreFailuresThanAllowedEndTheRun) {
  std::vector<PlannedRequest> workload(50, planned(0, 1));
  for (const std::size_t bad : {2, 4, 6}) workload[bad].output_tokens = 0;
  for (std::size_t i = 7; i < workload.size(); ++i) workload[i].due_s = 600;
  TimedTarget target([](std::size_t index) { return milliseconds(index == 1 ? -1 : 1); });
  const RunRecord run = run_load(workload, target, {.allowed_failures = 2});
  EXPECT_TRUE(run.given_up);
  ASSERT_EQ(run.requests.size(), 7u) << "what was not due is not sent";
  EXPECT_EQ(run.requests[1].failure.value().kind, "cancelled");
  EXPECT_EQ(run.requests[6].failure.value().kind, "bad");
}

// The limit counts from the last arrival that is planned, and cancels what is open.
TEST(LoadDriver, ARunThatTakesTooLongIsGivenUp) {
  for (const int streams : {0, 2}) {
    TimedTarget target([](std::size_t index) { return milliseconds(index == 1 ? -1 : 1); });
    const RunRecord run = run_load({planned(0), planned(0), planned(1.2)}, target,
                                   {.num_streams = streams, .allowed_failures = 3, .timeout = milliseconds(1000)});
    EXPECT_TRUE(run.timed_out && run.given_up) << streams;
    ASSERT_EQ(run.requests.size(), 3u) << "the last arrival is within the plan";
    EXPECT_EQ(run.requests[1].failure.value().kind, "cancelled");
    EXPECT_FALSE(run.requests[2].failure);
  }
  TimedTarget target([](std::size_t) { return milliseconds(100); });
  const RunRecord run =
      run_load(std::vector<PlannedRequest>(100, planned(0)), target, {.num_streams = 1, .timeout = milliseconds(350)});
  EXPECT_TRUE(run.timed_out);
  EXPECT_LT(run.requests.size(), 10u) << "what was not sent stays so";
}

TEST(LoadDriver, FailuresWithinTheBudgetAreWrittenDown) {
  TimedTarget target([](std::size_t) { return milliseconds(1); });
  const RunRecord run = run_load({planned(0), planned(0, 0), planned(0)}, target, {.num_streams = 1, .allowed_failures = 1});
  EXPECT_FALSE(run.given_up);
  ASSERT_EQ(run.requests.size(), 3u);
  EXPECT_EQ(run.requests[1].failure.value().message, "told to fail");
}

TEST(LoadDriver, AnAnswerWithoutTokensHasFailed) {
  class Empty : public Target {
   public:
    Launch prepare(const PlannedRequest&) override {
      return [](const AnswerSink& sink) { sink({}); };
    }
    void cancel_all() override {}
  } target;
  EXPECT_EQ(run_load({planned(0)}, target, {.allowed_failures = 1}).requests[0].failure.value().kind, "empty");
}

// The requests that are open when a prepare throws still have somewhere to write.
TEST(LoadDriver, ARequestThatCannotBeMadeEndsTheRun) {
  class Throwing : public TimedTarget {
   public:
    using TimedTarget::TimedTarget;
    Launch prepare(const PlannedRequest& planned) override {
      if (num_prepared() == 2) throw Error(ErrorCode::kInvalidArgument, "no such prompt");
      return TimedTarget::prepare(planned);
    }
  } target([](std::size_t) { return milliseconds(50); });
  EXPECT_THROW(run_load({planned(0), planned(0), planned(0)}, target, {}), Error);
}

TEST(LoadDriver, ProgressIsShownWhileItWaits) {
  TimedTarget target([](std::size_t) { return milliseconds(600); });
  std::vector<LoadProgress> seen;
  run_load({planned(0), planned(0)}, target, {.on_progress = [&](const LoadProgress& progress) { seen.push_back(progress); }});
  ASSERT_FALSE(seen.empty());
  EXPECT_EQ(seen.back().total, 2u);
  EXPECT_EQ(seen.back().sent, 2u);
}

}  // namespace
}  // namespace quire::bench
