// ThreadPool: the library's own workers for CPU kernels. One parallel region at a time; workers spin briefly between regions,
// then sleep on a futex. No OpenMP: libgomp's spinning collapses under foreign load.
#pragma once

#include <cstdint>
#include <memory>

namespace quire {

// Reference to a callable `void(std::int64_t begin, std::int64_t end, int thread)`, alive during the call only.
class RangeFunction {
 public:
  template <typename F>
  RangeFunction(const F& f)  // NOLINT(google-explicit-constructor): made at the call
      : object_(&f), call_([](const void* o, std::int64_t b, std::int64_t e, int t) { (*static_cast<const F*>(o))(b, e, t); }) {}
  void operator()(std::int64_t begin, std::int64_t end, int thread) const { call_(object_, begin, end, thread); }

 private:
  const void* object_;
  void (*call_)(const void*, std::int64_t, std::int64_t, int);
};

class ThreadPool {
 public:
  // `num_threads` includes the calling thread; 0: the cores this process may use (its affinity mask).
  explicit ThreadPool(int num_threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  // What num_threads 0 stands for.
  static int default_num_threads();

  // Calls `body` on disjoint ranges that cover [0, count), in pieces of about `grain` (at least 1), on the workers and the
  // calling thread; returns when all have ended. Which thread gets which range is not defined: results must not depend on it.
  // The first exception of a body is rethrown here, after all have ended. Not reentrant.
  void parallel_for(std::int64_t count, std::int64_t grain, RangeFunction body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quire
