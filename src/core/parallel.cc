// How a region runs. The caller publishes the region's fields, then opens the gate. A worker that finds the gate open joins by
// raising its count, claims pieces from one shared counter, and leaves. When no piece is left the caller closes the gate and
// waits for those who joined, and for nobody else: a worker that wakes late, because its core was busy with other work, finds the
// gate closed, so it delays no region. The gate is one 32-bit word: a region number, an open bit, and the number of workers
// inside.
#include "core/parallel.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/check.h"

namespace quire {
namespace {

constexpr std::uint32_t kOpen = 1u << 12;
constexpr std::uint32_t kInsideMask = kOpen - 1;
constexpr std::uint32_t kRegion = 1u << 13;  // one step of the region number, which wraps
constexpr std::uint32_t kNoRegion = 1;       // no region has this number
constexpr int kMaxThreads = 1024;            // < kOpen
constexpr int kSpins = 1000;                 // pauses before sleeping: a few to some ten microseconds, by processor

std::uint32_t region_of(std::uint32_t gate) { return gate & ~(kRegion - 1); }

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

struct ThreadPool::State {
  // The region, written by the caller while the gate is closed and nobody is inside.
  const RangeFunction* body = nullptr;
  std::int64_t count = 0;
  std::int64_t grain = 1;
  std::exception_ptr error;  // the first of the region
  std::mutex error_mutex;

  alignas(64) std::atomic<std::int64_t> next{0};   // the first index that nobody has claimed
  alignas(64) std::atomic<std::uint32_t> gate{0};  // region number | open | workers inside
  alignas(64) std::atomic<std::uint32_t> left{0};  // number of the last region that all workers have left
  alignas(64) std::atomic<bool> busy{false};       // a region is running: guards against nested calls
  std::atomic<bool> stopping{false};
  int spins = 0;
  std::vector<std::thread> workers;

  // Claims and runs pieces until none is left. After an exception the unclaimed pieces are dropped.
  void work(int thread) {
    try {
      for (;;) {
        const std::int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
        if (begin >= count) return;
        (*body)(begin, std::min(count, begin + grain), thread);
      }
    } catch (...) {
      next.store(count, std::memory_order_relaxed);
      const std::lock_guard lock(error_mutex);
      if (!error) error = std::current_exception();
    }
  }

  // Joins the region that is open; false if the gate closed before the worker was inside. `seen`: the gate as it was before.
  bool join(std::uint32_t& seen) {
    while ((seen & kOpen) != 0) {
      if (gate.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire, std::memory_order_relaxed)) return true;
    }
    return false;
  }

  // Stores that come before a notify are sequentially consistent: with less, libstdc++ may read its count of waiters too early
  // and lose the wake-up.
  void leave() {
    const std::uint32_t after = gate.fetch_sub(1, std::memory_order_acq_rel) - 1;
    if ((after & (kOpen | kInsideMask)) != 0) return;
    left.store(region_of(after));
    left.notify_one();
  }

  void worker_loop(int thread) {
    std::uint32_t last = 0;  // the region served last
    for (int idle = 0;;) {
      std::uint32_t seen = gate.load(std::memory_order_acquire);
      if (stopping.load(std::memory_order_relaxed)) return;
      if ((seen & kOpen) != 0 && region_of(seen) != last) {
        if (join(seen)) {
          last = region_of(seen);
          work(thread);
          leave();
        }
        idle = 0;
      } else if (idle < spins) {
        ++idle;
        pause();
      } else {
        gate.wait(seen, std::memory_order_relaxed);
        idle = 0;
      }
    }
  }

  // Opens the gate for a region; returns its number.
  std::uint32_t open() {
    const std::uint32_t region = region_of(gate.load(std::memory_order_relaxed)) + kRegion;
    next.store(0, std::memory_order_relaxed);
    left.store(kNoRegion, std::memory_order_relaxed);  // region numbers wrap: an old one must not look like this one
    gate.store(region | kOpen);
    gate.notify_all();
    return region;
  }

  void close_and_wait(std::uint32_t region) {
    if ((gate.fetch_and(~kOpen, std::memory_order_acq_rel) & kInsideMask) == 0) return;
    for (int i = 0; i < spins; ++i) {
      if (left.load(std::memory_order_acquire) == region) return;
      pause();
    }
    for (std::uint32_t seen = left.load(std::memory_order_acquire); seen != region; seen = left.load(std::memory_order_acquire)) {
      left.wait(seen, std::memory_order_acquire);
    }
  }

  void stop() {
    stopping.store(true, std::memory_order_relaxed);
    gate.fetch_add(kRegion);  // a new value, so that no sleeper misses the word
    gate.notify_all();
    for (std::thread& worker : workers) worker.join();
  }
};

ThreadPool::ThreadPool(int num_threads) : state_(std::make_unique<State>()) {
  if (num_threads == 0) num_threads = default_num_threads();
  if (num_threads < 0 || num_threads > kMaxThreads) {
    fail(ErrorCode::kInvalidArgument, "num_threads is {}, must be 0 (all cores) to {}", num_threads, kMaxThreads);
  }
  state_->spins =
      num_threads <= available_cores() ? kSpins : 0;  // more threads than cores: spinning would hold up those who work
  try {
    for (int thread = 1; thread < num_threads; ++thread) {
      state_->workers.emplace_back([state = state_.get(), thread] { state->worker_loop(thread); });
      pthread_setname_np(state_->workers.back().native_handle(), ("quire-cpu-" + std::to_string(thread)).c_str());
    }
  } catch (const std::system_error& error) {
    state_->stop();
    fail(ErrorCode::kOutOfMemory, "num_threads is {}, but the system gives only {}: {}", num_threads, this->num_threads(),
         error.what());
  }
}

ThreadPool::~ThreadPool() { state_->stop(); }

int ThreadPool::default_num_threads() { return std::min(available_cores(), kMaxThreads); }

int ThreadPool::num_threads() const { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadPool::parallel_for(std::int64_t count, std::int64_t grain, RangeFunction body) {
  if (count <= 0) return;
  grain = std::clamp<std::int64_t>(grain, 1, count);
  State& s = *state_;
  QUIRE_CHECK_MSG(!s.busy.exchange(true, std::memory_order_acquire), "parallel_for inside parallel_for");
  s.body = &body;
  s.count = count;
  s.grain = grain;
  s.error = nullptr;
  if (s.workers.empty() || count == grain) {
    s.next.store(0, std::memory_order_relaxed);
    s.work(0);
  } else {
    const std::uint32_t region = s.open();
    s.work(0);
    s.close_and_wait(region);
  }
  const std::exception_ptr error = std::exchange(s.error, nullptr);
  s.busy.store(false, std::memory_order_release);
  if (error) std::rethrow_exception(error);
}

}  // namespace quire
