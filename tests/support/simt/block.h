// Block: one thread block while it runs. Owns the lanes (its CUDA threads, a fiber each), decides who runs next, and holds the
// barrier, the warp operations, the shared memory. Device operations reach it by current_block(); all of them may throw Error,
// which ends the launch. Nothing here is safe to use from two OS threads: run_grid lets one launch in at a time.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "simt/async_copy.h"
#include "simt/emulator.h"
#include "simt/fiber.h"
#include "simt/race_detector.h"
#include "simt/shared_memory.h"
#include "simt/site.h"
#include "simt/traffic.h"
#include "simt/vector_types.h"
#include "simt/warp.h"

namespace simt {

constexpr int kWarpLanes = 32;
constexpr int kMaxWarps = 32;

struct Grid {
  dim3 blocks;
  dim3 threads;  // of one block
  std::size_t dynamic_bytes = 0;
  std::size_t most_shared_bytes = 0;              // of a block, dynamic and static ones
  void (*run_thread)(void* arguments) = nullptr;  // calls the kernel
  void* arguments = nullptr;
};

// Runs all blocks, one after another. Throws simt::Error for a kernel's fault. REQUIRES: a shape that CUDA takes.
void run_grid(const Grid& grid);

struct Lane {
  enum class State : std::uint8_t { kReady, kRunning, kWaiting, kDone };

  explicit Lane(void (*entry)()) : fiber(entry) {}

  Fiber fiber;
  uint3 thread_index = {};
  int index = 0;  // in the block
  int warp = 0;
  int lane = 0;  // in the warp
  State state = State::kDone;
  const char* waits_in = "";  // "__syncthreads"
  Site waits_at;
  AsyncCopyQueue copies;
};

class Block {
 public:
  // Runs the block `block_index` of the grid to its end.
  void run(const Grid& grid, uint3 block_index);

  Lane& running() { return *running_; }
  SharedMemory& shared() { return shared_; }
  Statistics& statistics() { return statistics_; }
  TrafficCounter& traffic() { return traffic_; }
  RaceDetector& races() { return races_; }
  bool detects_races() const { return detects_races_; }
  // Ends the running lane with an Error about memory that it may not touch. Its stack may be used from the top.
  [[noreturn]] void end_by_access_fault();
  // An access to shared memory beside all arrays, found by the hooks.
  void note_stray_access(const void* address);

  // __syncthreads: returns when all threads of the block have come here.
  void sync_threads(Site site);
  // Puts the operand of the running lane into the warp operation of the lanes of `mask` and waits for the others; the last one
  // calls `complete` (which may be null). Read the result from the returned operation, then call leave().
  WarpOperation& meet(const WarpOperation::Kind& kind, std::uint32_t mask, const void* operand, Site site,
                      void (*complete)(WarpOperation&) = nullptr);
  void leave(WarpOperation& operation);

  // Throws Error that begins with the place in the grid of the running thread.
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    fail_with(fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  [[noreturn]] void fail_with(const std::string& what) const;
  static void run_lane();  // the entry of every fiber

  void prepare(const Grid& grid, uint3 block_index);
  void check_return(const Lane& lane) const;
  void make_ready(Lane& lane);
  Lane* next_lane();
  void enter(Lane& lane);
  void wait(const char* in, Site site);  // parks the running lane until make_ready
  std::string describe_waiting() const;
  std::string describe_race() const;
  void check_memory() const;
  std::uint64_t random();

  const Grid* grid_ = nullptr;
  uint3 block_index_ = {};
  Fiber host_;
  std::vector<Lane> lanes_;  // some may be left from a larger block
  int num_lanes_ = 0;
  int num_done_ = 0;
  Lane* running_ = nullptr;
  std::exception_ptr error_;

  std::uint32_t ready_warps_ = 0;
  std::array<std::uint32_t, kMaxWarps> ready_lanes_ = {};
  int favourite_warp_ = 0;  // of the random schedule
  std::uint64_t random_state_ = 1;

  int num_at_barrier_ = 0;
  Site barrier_site_;
  std::array<Warp, kMaxWarps> warps_;
  SharedMemory shared_;
  Statistics statistics_;
  TrafficCounter traffic_;
  RaceDetector races_;
  bool detects_races_ = false;
  std::string stray_access_;  // the first one
};

// The block whose thread is running; null outside of a launch.
Block* current_block();
// The same, or an Error for a device operation called by host code.
Block& block();

}  // namespace simt
