// The engine stays single-threaded: one thread owns it, other threads leave work in an inbox under a mutex that is never held
// during a step, so neither submit() nor cancel() waits for a forward pass to be accepted. The one lock order: `mutex_` alone.
// No exception leaves the thread: what fails there ends one request with an event, or is logged.
#include "quire/async_engine.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/check.h"
#include "core/log.h"
#include "engine/current_error.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;

template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) noexcept {
  try {
    logger().error(format, std::forward<Args>(args)...);
  } catch (...) {  // a log line is worth less than the thread
  }
}

// A request that was accepted and has not finished. All but `id` belongs to the engine's thread once it is in the inbox.
struct OpenRequest {
  RequestId id = 0;
  Request request;  // moves into the engine
  EventCallback callback;
  Clock::time_point submitted;
  RequestId engine_id = 0;  // the engine's own; 0: not there yet
  int num_choices = 0;
  int num_ended = 0;  // choices
};
using OpenRequests = std::vector<std::shared_ptr<OpenRequest>>;

// What is left of a timeout that began at `since`.
std::int64_t remaining_us(std::int64_t timeout_us, Clock::time_point since) {
  const auto passed = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - since).count();
  return std::max<std::int64_t>(0, timeout_us - passed);
}

}  // namespace

class AsyncEngine::Impl {
 public:
  Impl(Engine engine, const AsyncEngineOptions& options)
      : engine_(std::move(engine)), options_(options), stats_(engine_.stats()) {
    if (engine_.has_work()) fail(ErrorCode::kInvalidArgument, "engine: it has open requests, whose events nobody would see");
    if (options_.max_queued == 0) fail(ErrorCode::kInvalidArgument, "AsyncEngineOptions::max_queued is 0, must be at least 1");
    thread_ = std::thread([this] { run(); });
  }

  // Ends the thread. Callbacks may still come, and may use the AsyncEngine, until this returns.
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  RequestId submit(Request request, EventCallback callback) {
    const Clock::time_point now = Clock::now();
    if (!callback) fail(ErrorCode::kInvalidArgument, "callback is empty");
    engine_.check(request);
    const auto open = std::make_shared<OpenRequest>();
    open->num_choices = request.sampling.n;
    open->request = std::move(request);
    open->callback = std::move(callback);
    open->submitted = now;
    const RequestId id = accept(open);
    wake_.notify_all();
    return id;
  }

  bool cancel(RequestId id) {
    std::unique_lock lock(mutex_);
    const auto found = open_.find(id);
    if (found == open_.end()) return false;
    cancels_.push_back(found->second);
    wake_.notify_all();
    if (!on_own_thread()) left_.wait(lock, [&] { return !open_.contains(id); });
    return true;
  }

  void drain() {
    const std::lock_guard lock(mutex_);
    draining_ = true;
  }

  void drain_and_wait() {
    if (on_own_thread()) fail(ErrorCode::kInvalidArgument, "drain_and_wait() is called by a callback, for which it would wait");
    std::unique_lock lock(mutex_);
    draining_ = true;
    left_.wait(lock, [&] { return open_.empty(); });
  }

  EngineStats stats() const {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

  const Tokenizer& tokenizer() const { return engine_.tokenizer(); }

 private:
  bool on_own_thread() const { return std::this_thread::get_id() == thread_.get_id(); }

  // All or nothing: what may throw comes first.
  RequestId accept(const std::shared_ptr<OpenRequest>& open) {
    const std::lock_guard lock(mutex_);
    if (draining_ || stopping_) fail(ErrorCode::kUnavailable, "the engine is draining and accepts no more requests");
    if (open_.size() >= options_.max_queued) {
      fail(ErrorCode::kUnavailable, "max_queued: {} requests are open already", options_.max_queued);
    }
    open->id = next_id_;
    inbox_.push_back(open);
    try {
      open_.emplace(open->id, open);
    } catch (...) {
      inbox_.pop_back();
      throw;
    }
    return next_id_++;
  }

  // ---- the engine's thread

  void run() {
    while (take_inbox()) {
      for (const auto& open : submissions_taken_) start(open);
      for (const auto& open : cancels_taken_) {
        if (open->engine_id != 0) engine_.cancel(open->engine_id);
      }
      std::vector<TokenEvent> events = step();
      publish_stats();
      for (TokenEvent& event : events) deliver(event);
    }
  }

  // Takes what waits. Sleeps while there is nothing to do; false: time to end.
  bool take_inbox() {
    submissions_taken_.clear();
    cancels_taken_.clear();
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return stopping_ || !inbox_.empty() || !cancels_.empty() || engine_.has_work(); });
    if (stopping_ && inbox_.empty() && !engine_.has_work()) return false;
    submissions_taken_.swap(inbox_);
    cancels_taken_.swap(cancels_);
    must_cancel_all_ = stopping_;
    return true;
  }

  void start(const std::shared_ptr<OpenRequest>& open) {
    try {
      running_.emplace(0, open);  // its place first: nothing may throw once the engine has the request
      auto place = running_.extract(0);
      if (auto& timeout_us = open->request.timeout_us) *timeout_us = remaining_us(*timeout_us, open->submitted);
      open->engine_id = engine_.submit(std::move(open->request));
      place.key() = open->engine_id;
      running_.insert(std::move(place));
    } catch (...) {  // passed check(), and the engine failed or drained since, or memory ran out
      end_with_error(*open, current_error());
    }
  }

  std::vector<TokenEvent> step() {
    if (must_cancel_all_) {
      for (const auto& [engine_id, open] : running_) engine_.cancel(engine_id);
    }
    try {
      return engine_.step();
    } catch (...) {  // every open request gets its last event from the steps that follow
      if (!has_failed_) log_error("the engine failed: {}", current_error().what());
      has_failed_ = true;
      return {};
    }
  }

  void deliver(TokenEvent& event) {
    const auto found = running_.find(event.request_id);
    if (found == running_.end()) return;
    const std::shared_ptr<OpenRequest> open = found->second;
    event.request_id = open->id;
    if (!call(*open, event)) engine_.cancel(open->engine_id);
    if (event.finish_reason == FinishReason::kNone || ++open->num_ended < open->num_choices) return;
    running_.erase(found);
    leave(*open);
  }

  void end_with_error(OpenRequest& open, const Error& error) {
    for (; open.num_ended < open.num_choices; ++open.num_ended) {
      TokenEvent event;
      event.request_id = open.id;
      event.index = open.num_ended;
      event.finish_reason = FinishReason::kError;
      try {
        event.error = error.what();
      } catch (const std::bad_alloc&) {  // the end matters more than its reason
      }
      call(open, event);
    }
    leave(open);
  }

  // False: the callback threw, and will not be called again.
  static bool call(OpenRequest& open, const TokenEvent& event) {
    if (!open.callback) return true;
    try {
      open.callback(event);
      return true;
    } catch (...) {
      log_error("the callback of request {} threw, the request is cancelled: {}", open.id, current_error().what());
    }
    open.callback = nullptr;
    return false;
  }

  void leave(OpenRequest& open) {
    open.callback = nullptr;  // whatever it holds is gone before anyone who waits goes on
    {
      const std::lock_guard lock(mutex_);
      open_.erase(open.id);
    }
    left_.notify_all();
  }

  void publish_stats() {
    try {
      EngineStats stats = engine_.stats();
      const std::lock_guard lock(mutex_);
      std::swap(stats_, stats);
    } catch (...) {  // those of the step before stay
      log_error("no statistics of this step: {}", current_error().what());
    }
  }

  Engine engine_;  // after construction touched by thread_ alone, save for its thread-safe members
  const AsyncEngineOptions options_;

  // thread_ alone.
  std::unordered_map<RequestId, std::shared_ptr<OpenRequest>> running_;  // by the engine's id
  OpenRequests submissions_taken_;
  OpenRequests cancels_taken_;
  bool must_cancel_all_ = false;
  bool has_failed_ = false;

  mutable std::mutex mutex_;
  std::condition_variable wake_;  // for thread_: something arrived
  std::condition_variable left_;  // for callers: a request has left
  OpenRequests inbox_;
  OpenRequests cancels_;
  std::unordered_map<RequestId, std::shared_ptr<OpenRequest>> open_;  // counted by max_queued, waited for by cancel()
  RequestId next_id_ = 1;
  bool draining_ = false;
  bool stopping_ = false;
  EngineStats stats_;

  std::thread thread_;  // last: starts when everything else is there
};

AsyncEngine::AsyncEngine(Engine engine, const AsyncEngineOptions& options)
    : impl_(throwing_errors([&] { return std::make_unique<Impl>(std::move(engine), options); })) {}
AsyncEngine::~AsyncEngine() { impl_->stop(); }

RequestId AsyncEngine::submit(Request request, EventCallback callback) {
  return throwing_errors([&] { return impl_->submit(std::move(request), std::move(callback)); });
}
bool AsyncEngine::cancel(RequestId id) {
  return throwing_errors([&] { return impl_->cancel(id); });
}
void AsyncEngine::drain() { impl_->drain(); }
void AsyncEngine::drain_and_wait() { impl_->drain_and_wait(); }
EngineStats AsyncEngine::stats() const { return impl_->stats(); }
const Tokenizer& AsyncEngine::tokenizer() const { return impl_->tokenizer(); }

}  // namespace quire
