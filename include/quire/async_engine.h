// AsyncEngine: an Engine on a thread of its own. Every member may be called from any thread; callbacks come on the engine's
// thread, one at a time, in the order of the events.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "quire/engine.h"

namespace quire {

// Sees every event of its request. It should return quickly: all requests wait for it. An exception from it cancels its request
// and goes no further. It may call submit() and cancel(), but not drain_and_wait() or the destructor.
using EventCallback = std::function<void(const TokenEvent&)>;

struct AsyncEngineOptions {
  std::size_t max_queued = 1024;  // requests accepted and not finished; beyond it submit() throws (back-pressure)
};

class AsyncEngine {
 public:
  explicit AsyncEngine(Engine engine, const AsyncEngineOptions& options = {});
  // Cancels what is open (their callbacks see FinishReason::kCancelled), then joins.
  ~AsyncEngine();
  AsyncEngine(const AsyncEngine&) = delete;
  AsyncEngine& operator=(const AsyncEngine&) = delete;

  // As Engine::submit, with the same errors thrown here; kUnavailable if max_queued requests are open. The callback may run
  // before this returns.
  RequestId submit(Request request, EventCallback callback);

  // Returns once the request has left the engine or was unknown; true: it was open. Its last event comes before the return,
  // unless called from a callback, where it comes later.
  bool cancel(RequestId id);

  // Accepts no more requests.
  void drain();
  // drain(), then waits for the open requests to finish.
  void drain_and_wait();

  EngineStats stats() const;
  const Tokenizer& tokenizer() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
