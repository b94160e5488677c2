// The engine stays single-threaded: one thread owns it, other threads leave work in an inbox under a mutex that is never held
// during a step, so neither submit() nor cancel() waits for a forward pass to be accepted. The one lock order: `mutex_` alone.
#include "quire/async_engine.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/check.h"
#include "core/log.h"

namespace quire {

class AsyncEngine::Impl {
 public:
  Impl(Engine engine, const AsyncEngineOptions& options)
      : engine_(std::move(engine)), options_(options), stats_(engine_.stats()), thread_([this] { run(); }) {}

  // Ends the thread. Callbacks may still come, and may use the AsyncEngine, until this returns.
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      cancels_.assign(open_.begin(), open_.end());
    }
    wake_.notify_all();
    thread_.join();
  }

  RequestId submit(Request request, EventCallback callback) {
    engine_.check(request);
    RequestId id = 0;
    {
      const std::lock_guard lock(mutex_);
      if (draining_ || stopping_) fail(ErrorCode::kUnavailable, "the engine is draining and accepts no more requests");
      if (open_.size() >= options_.max_queued) {
        fail(ErrorCode::kUnavailable, "max_queued: {} requests are open already", options_.max_queued);
      }
      id = next_id_++;
      inbox_.push_back({id, std::move(request), std::move(callback)});
      open_.insert(id);
    }
    wake_.notify_all();
    return id;
  }

  bool cancel(RequestId id) {
    std::unique_lock lock(mutex_);
    if (!open_.contains(id)) return false;
    cancels_.push_back(id);
    wake_.notify_all();
    if (std::this_thread::get_id() != thread_.get_id()) left_.wait(lock, [&] { return !open_.contains(id); });
    return true;
  }

  void drain() {
    const std::lock_guard lock(mutex_);
    draining_ = true;
  }

  void drain_and_wait() {
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
  struct Submission {
    RequestId id = 0;
    Request request;
    EventCallback callback;
  };
  struct Running {
    RequestId id = 0;  // ours; the engine's is the key
    EventCallback callback;
    int choices_open = 0;
  };

  void run() {
    while (take_inbox()) {
      std::vector<TokenEvent> events;
      try {
        events = engine_.step();
      } catch (const std::exception& error) {
        // Every open request gets its last event from the steps that follow.
        logger().error("the engine failed: {}", error.what());
      }
      publish_stats();
      for (TokenEvent& event : events) deliver(event);
    }
  }

  // Hands waiting submissions and cancels to the engine. Sleeps while there is nothing to do; false: time to end.
  bool take_inbox() {
    std::vector<Submission> submissions;
    std::vector<RequestId> cancels;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stopping_ || !inbox_.empty() || !cancels_.empty() || engine_.has_work(); });
      if (stopping_ && inbox_.empty() && cancels_.empty() && !engine_.has_work()) return false;
      submissions.swap(inbox_);
      cancels.swap(cancels_);
    }
    for (Submission& submission : submissions) start(submission);
    for (const RequestId id : cancels) {
      for (const auto& [engine_id, running] : running_) {
        if (running.id == id) {
          engine_.cancel(engine_id);
          break;
        }
      }
    }
    return true;
  }

  void start(Submission& submission) {
    const int choices = submission.request.sampling.n;
    try {
      const RequestId engine_id = engine_.submit(std::move(submission.request));
      running_.emplace(engine_id, Running{submission.id, std::move(submission.callback), choices});
    } catch (const std::exception& error) {  // passed check(), and the engine failed or drained since
      TokenEvent event;
      event.request_id = submission.id;
      event.finish_reason = FinishReason::kError;
      event.error = error.what();
      for (event.index = 0; event.index < choices; ++event.index) call(submission.callback, event);
      leave(submission.id);
    }
  }

  void deliver(TokenEvent& event) {
    const auto found = running_.find(event.request_id);
    QUIRE_CHECK(found != running_.end());
    Running& running = found->second;
    event.request_id = running.id;
    const bool callback_failed = !call(running.callback, event);
    if (callback_failed) {
      running.callback = nullptr;
      engine_.cancel(found->first);
    }
    if (event.finish_reason == FinishReason::kNone || --running.choices_open > 0) return;
    const RequestId id = running.id;
    running_.erase(found);
    leave(id);
  }

  static bool call(const EventCallback& callback, const TokenEvent& event) {
    if (!callback) return true;
    try {
      callback(event);
      return true;
    } catch (const std::exception& error) {
      logger().error("the callback of request {} threw, the request is cancelled: {}", event.request_id, error.what());
    } catch (...) {
      logger().error("the callback of request {} threw, the request is cancelled", event.request_id);
    }
    return false;
  }

  void leave(RequestId id) {
    {
      const std::lock_guard lock(mutex_);
      open_.erase(id);
    }
    left_.notify_all();
  }

  void publish_stats() {
    EngineStats stats = engine_.stats();
    const std::lock_guard lock(mutex_);
    stats_ = std::move(stats);
  }

  Engine engine_;  // after construction touched by thread_ alone, save for its thread-safe members
  const AsyncEngineOptions options_;
  std::unordered_map<RequestId, Running> running_;  // thread_ alone

  mutable std::mutex mutex_;
  std::condition_variable wake_;  // for thread_: something arrived
  std::condition_variable left_;  // for callers: a request has left
  std::vector<Submission> inbox_;
  std::vector<RequestId> cancels_;
  std::unordered_set<RequestId> open_;  // accepted and not finished: counted by max_queued, waited for by cancel()
  RequestId next_id_ = 1;
  bool draining_ = false;
  bool stopping_ = false;
  EngineStats stats_;

  std::thread thread_;  // last: starts when everything else is there
};

AsyncEngine::AsyncEngine(Engine engine, const AsyncEngineOptions& options)
    : impl_(std::make_unique<Impl>(std::move(engine), options)) {}
AsyncEngine::~AsyncEngine() { impl_->stop(); }

RequestId AsyncEngine::submit(Request request, EventCallback callback) {
  return impl_->submit(std::move(request), std::move(callback));
}
bool AsyncEngine::cancel(RequestId id) { return impl_->cancel(id); }
void AsyncEngine::drain() { impl_->drain(); }
void AsyncEngine::drain_and_wait() { impl_->drain_and_wait(); }
EngineStats AsyncEngine::stats() const { return impl_->stats(); }
const Tokenizer& AsyncEngine::tokenizer() const { return impl_->tokenizer(); }

}  // namespace quire
