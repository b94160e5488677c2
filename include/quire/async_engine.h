// AsyncEngine: an Engine on a thread of its own.
//
// Every member but the destructor may be called from any thread at any time, also several at once. Callbacks come on the engine's
// thread, one at a time, in the order of the events; a request's callback is destroyed there too, before the request counts as
// finished.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "quire/engine.h"

namespace quire {

// Sees every event of its request. It should return quickly: all requests wait for it. An exception from it cancels its request
// and goes no further; it is not called again. It may call every member of the AsyncEngine but the destructor and
// drain_and_wait(), which throws Error(kInvalidArgument) there.
using EventCallback = std::function<void(const TokenEvent&)>;

struct AsyncEngineOptions {
  std::size_t max_queued = 1024;  // requests accepted and not finished; beyond it submit() throws (back-pressure). At least 1
};

class AsyncEngine {
 public:
  // REQUIRES: `engine` was not moved from. Throws Error(kInvalidArgument) if it has work.
  explicit AsyncEngine(Engine engine, const AsyncEngineOptions& options = {});
  // Cancels what is open (the callbacks see FinishReason::kCancelled), waits for the step under way, then joins; when it returns
  // no callback runs or will. No other thread may be in a member, or enter one, from its start on; callbacks may until it
  // returns. Not to be called by a callback.
  ~AsyncEngine();
  AsyncEngine(const AsyncEngine&) = delete;
  AsyncEngine& operator=(const AsyncEngine&) = delete;

  // As Engine::submit, with the same errors thrown here; kUnavailable if max_queued requests are open, kInvalidArgument for an
  // empty callback. Request::timeout_us counts from this call. The callback may run before this returns. If the engine cannot
  // take an accepted request (it failed meanwhile), the callback sees FinishReason::kError.
  RequestId submit(Request request, EventCallback callback);

  // Returns once the request has left the engine or was unknown; true: it was open. Its last event comes before the return,
  // unless called from a callback, where it comes later.
  bool cancel(RequestId id);

  // Accepts no more requests.
  void drain();
  // drain(), then waits for the open requests to finish.
  void drain_and_wait();

  EngineStats stats() const;  // after the last step
  const Tokenizer& tokenizer() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
