// What tests say to the emulator that runs CUDA kernels on the CPU: how to schedule the threads, and what it saw.
// Every thread of a block is a fiber; blocks run one after another; shared memory and device buffers start as 0xFF bytes, which
// are NaN in every float type. Faults (deadlock, divergent barrier, wrong mask, copy never waited for, race, address outside
// every buffer) throw simt::Error out of the launch. One launch at a time per process; options belong to the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <span>
#include <stdexcept>
#include <vector>

namespace simt {

// A fault of the kernel: "simt: block (0,0,0) thread (33,0,0): divergent barrier: ...".
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Who runs next whenever a thread waits.
enum class Schedule {
  kAscending,   // the first thread that can
  kDescending,  // the last
  kRandom,      // any, staying with a warp for a while
};

// When asynchronous copies land. Either way a fault may stay hidden that the other shows, so tests run both.
enum class AsyncCopies {
  kEager,  // at once
  kLazy,   // as late as allowed: at the wait. The destination is NaN from the issue on
};

struct Options {
  Schedule schedule = Schedule::kRandom;
  std::uint64_t seed = 1;  // of the random schedule
  AsyncCopies async_copies = AsyncCopies::kLazy;
  bool detect_races = true;    // works where the hooks are linked
  bool count_traffic = false;  // slows down
};
std::ostream& operator<<(std::ostream& out, const Options& options);

// The runs that every kernel test makes: both orders, some seeds, eager copies. A right kernel gives the same bits in all.
// The environment variable QUIRE_SIMT_SEEDS adds so many seeds.
std::span<const Options> all_schedules();

const Options& options();

// Sets the options for its lifetime.
class ScopedOptions {
 public:
  explicit ScopedOptions(const Options& options);
  ~ScopedOptions();
  ScopedOptions(const ScopedOptions&) = delete;
  ScopedOptions& operator=(const ScopedOptions&) = delete;

 private:
  Options before_;
};

// Whether this program has the kernels of the hooks build, in which the emulator sees every access to memory.
bool has_hooks();

// Whether statistics and ReadWatch see anything; on a GPU they do not. What expects counts asks first, and is skipped there.
bool has_statistics();

struct GlobalTraffic {
  std::int64_t num_requests = 0;  // of warps
  std::int64_t num_sectors = 0;   // of 32 bytes
  std::int64_t num_bytes = 0;     // that lanes asked for
};

struct SharedTraffic {
  std::int64_t num_requests = 0;      // of warps
  std::int64_t num_phases = 0;        // each serves one word per bank
  std::int64_t num_ideal_phases = 0;  // without bank conflicts
};

struct Statistics {
  std::int64_t num_launches = 0;
  std::int64_t num_blocks = 0;
  std::int64_t num_switches = 0;         // from thread to thread
  std::int64_t num_barriers = 0;         // __syncthreads of whole blocks
  std::int64_t num_warp_operations = 0;  // shuffles, votes, matrix instructions of whole masks
  std::int64_t num_async_copies = 0;     // cp.async of one thread each

  // With Options::count_traffic. Of accesses that kernels name (load_global, ...) and, in the hooks build, of all others.
  GlobalTraffic global_loads;
  GlobalTraffic global_stores;
  GlobalTraffic copy_reads;  // by cp.async
  SharedTraffic shared_loads;
  SharedTraffic shared_stores;
  SharedTraffic copy_writes;   // by cp.async
  SharedTraffic matrix_loads;  // ldmatrix
};

// Of all launches since the last call.
Statistics take_statistics();

// Counts, while it lives, how often kernels read each byte of a piece of device memory by load_global or cp_async_16 and, in the
// hooks build, by anything else.
class ReadWatch {
 public:
  ReadWatch(const void* address, std::size_t bytes);
  ~ReadWatch();
  ReadWatch(const ReadWatch&) = delete;
  ReadWatch& operator=(const ReadWatch&) = delete;

  // For each byte; ends at 255.
  const std::vector<std::uint8_t>& num_reads() const { return num_reads_; }
  void note(const void* address, std::size_t bytes);

 private:
  const unsigned char* begin_;
  std::vector<std::uint8_t> num_reads_;
};

}  // namespace simt
