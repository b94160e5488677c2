#include "simt/block.h"

#include <dlfcn.h>

#include <bit>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "simt/access_fault.h"
#include "simt/builtin_variables.h"
#include "simt/device_memory.h"
#include "simt/first_block.h"
#include "simt/instructions.h"

namespace simt {
namespace {

Block* running_block = nullptr;

std::string to_string(uint3 v) { return fmt::format("({},{},{})", v.x, v.y, v.z); }

}  // namespace

Block* current_block() { return running_block; }

Block& block() {
  if (running_block == nullptr) throw Error("simt: a device operation was called outside of a kernel");
  return *running_block;
}

void Block::fail_with(const std::string& what) const {
  throw Error(fmt::format("simt: block {} thread {}: {}", to_string(block_index_), to_string(running_->thread_index), what));
}

// ---- who runs

std::uint64_t Block::random() {  // xorshift, Marsaglia 2003
  random_state_ ^= random_state_ << 13;
  random_state_ ^= random_state_ >> 7;
  random_state_ ^= random_state_ << 17;
  return random_state_;
}

void Block::make_ready(Lane& lane) {
  lane.state = Lane::State::kReady;
  ready_warps_ |= 1u << lane.warp;
  ready_lanes_[lane.warp] |= 1u << lane.lane;
}

namespace {

int lowest(std::uint32_t set) { return std::countr_zero(set); }
int highest(std::uint32_t set) { return 31 - std::countl_zero(set); }
// The first of the set at or after a random place, around the end.
int any_of(std::uint32_t set, std::uint64_t random) {
  const int turn = static_cast<int>(random >> 33) & 31;
  return (lowest(std::rotr(set, turn)) + turn) & 31;
}

}  // namespace

Lane* Block::next_lane() {
  if (ready_warps_ == 0) return nullptr;
  int warp = 0;
  int lane = 0;
  switch (options().schedule) {
    case Schedule::kAscending:
      warp = lowest(ready_warps_);
      lane = lowest(ready_lanes_[warp]);
      break;
    case Schedule::kDescending:
      warp = highest(ready_warps_);
      lane = highest(ready_lanes_[warp]);
      break;
    case Schedule::kRandom:
      // Staying with a warp lets it run ahead of the others, as far as the barriers let it: where the races are.
      if ((ready_warps_ >> favourite_warp_ & 1) == 0 || random() % 64 == 0) favourite_warp_ = any_of(ready_warps_, random());
      warp = favourite_warp_;
      lane = any_of(ready_lanes_[warp], random());
      break;
  }
  ready_lanes_[warp] &= ~(1u << lane);
  if (ready_lanes_[warp] == 0) ready_warps_ &= ~(1u << warp);
  return &lanes_[warp * kWarpLanes + lane];
}

void Block::enter(Lane& lane) {
  running_ = &lane;
  lane.state = Lane::State::kRunning;
  ::threadIdx = lane.thread_index;
  ++statistics_.num_switches;
}

void Block::wait(const char* in, Site site) {
  Lane& me = *running_;
  if (me.state == Lane::State::kRunning) me.state = Lane::State::kWaiting;
  me.waits_in = in;
  me.waits_at = site;
  Lane* const next = next_lane();
  if (next == &me) {
    enter(me);
    return;
  }
  if (next != nullptr) enter(*next);
  me.fiber.switch_to(next != nullptr ? next->fiber : host_);
}

// ---- one block

void Block::prepare(const Grid& grid, uint3 block_index) {
  grid_ = &grid;
  block_index_ = block_index;
  num_lanes_ = static_cast<int>(grid.threads.x * grid.threads.y * grid.threads.z);
  num_done_ = 0;
  num_at_barrier_ = 0;
  error_ = nullptr;
  ready_warps_ = 0;
  ready_lanes_ = {};
  for (Warp& warp : warps_) warp.lanes = warp.returned = warp.open = 0;
  const std::uint64_t place = (std::uint64_t{block_index.z} << 48) ^ (std::uint64_t{block_index.y} << 32) ^ block_index.x;
  random_state_ = (options().seed + 1) * 0x9E3779B97F4A7C15u ^ (place + 1) * 0xD1B54A32D192ED03u;
  if (random_state_ == 0) random_state_ = 1;
  shared_.prepare(grid.dynamic_bytes, grid.most_shared_bytes);
  stray_access_.clear();
  detects_races_ = has_hooks() && options().detect_races;
  if (detects_races_) races_.prepare();
  if (options().count_traffic) traffic_.prepare();

  while (lanes_.size() < static_cast<std::size_t>(num_lanes_)) lanes_.emplace_back(&Block::run_lane);
  for (int i = 0; i < num_lanes_; ++i) {
    Lane& lane = lanes_[i];
    const auto index = static_cast<unsigned>(i);
    lane.index = i;
    lane.warp = i / kWarpLanes;
    lane.lane = i % kWarpLanes;
    lane.thread_index = {index % grid.threads.x, index / grid.threads.x % grid.threads.y,
                         index / (grid.threads.x * grid.threads.y)};
    lane.copies.clear();
    lane.fiber.prepare();
    warps_[lane.warp].lanes |= 1u << lane.lane;
    make_ready(lane);
  }
  ::blockIdx = block_index;
  ::blockDim = grid.threads;
  ::gridDim = grid.blocks;
}

void Block::run(const Grid& grid, uint3 block_index) {
  prepare(grid, block_index);
  running_block = this;
  Lane* const first = next_lane();
  enter(*first);
  host_.switch_to(first->fiber);
  running_block = nullptr;
  ++statistics_.num_blocks;
  if (options().count_traffic) traffic_.add_to(statistics_);
  check_memory();
  if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
  if (num_done_ != num_lanes_)
    throw Error(fmt::format("simt: block {}: deadlock: {}", to_string(block_index), describe_waiting()));
}

// Before other errors, which may be what came of it.
void Block::check_memory() const {
  const auto refuse = [&](const std::string& why) {
    throw Error(fmt::format("simt: block {}: {}", to_string(block_index_), why));
  };
  if (!stray_access_.empty()) refuse(stray_access_);
  if (detects_races_ && races_.num_reports() > 0) refuse(describe_race());
  if (!shared_.gaps_intact()) refuse("something was written beside the arrays of shared memory");
}

void Block::run_lane() {
  Fiber::started();
  Block& self = *running_block;
  Lane& lane = *self.running_;
  try {
    self.grid_->run_thread(self.grid_->arguments);
    self.check_return(lane);
  } catch (...) {
    if (self.error_ == nullptr) self.error_ = std::current_exception();
  }
  lane.state = Lane::State::kDone;
  ++self.num_done_;
  self.warps_[lane.warp].returned |= 1u << lane.lane;
  Lane* const next = self.error_ == nullptr ? self.next_lane() : nullptr;
  if (next != nullptr) self.enter(*next);
  lane.fiber.finish(next != nullptr ? next->fiber : self.host_);
}

void Block::check_return(const Lane& lane) const {
  if (!lane.copies.empty())
    fail("returned with asynchronous copies never waited for, the first issued at {}", simt::to_string(lane.copies.front().site));
  if (num_at_barrier_ > 0)
    fail("divergent barrier: returned while {} thread(s) wait in __syncthreads at {}", num_at_barrier_,
         simt::to_string(barrier_site_));
  const Warp& warp = warps_[lane.warp];
  for (std::uint32_t open = warp.open; open != 0; open &= open - 1) {
    const WarpOperation& operation = warp.operations[std::countr_zero(open)];
    const std::uint32_t missing = operation.mask & ~operation.arrived;
    if ((missing >> lane.lane & 1) != 0)
      fail("divergent warp: returned while lanes of its warp wait for it in {} at {}", operation.kind.name,
           simt::to_string(operation.site));
  }
}

void Block::end_by_access_fault() {
  const void* const address = AccessFault::address();
  try {
    if (running_->fiber.overflows_at(address)) fail("its stack of {} bytes is full", Fiber::kStackBytes);
    fail("touches {}", describe_device_address(address));
  } catch (...) {
    error_ = std::current_exception();
  }
  running_->state = Lane::State::kDone;
  running_->fiber.abandon(host_);
}

void Block::note_stray_access(const void* address) {
  if (stray_access_.empty())
    stray_access_ = fmt::format("thread {} accesses shared memory beside all arrays: {}", running_->index,
                                shared_.describe(shared_.offset(address)));
}

std::string Block::describe_race() const {
  const RaceDetector::Report& report = races_.first();
  std::string text = fmt::format("{}: {}, thread {}", report.what, shared_.describe(report.offset), report.thread);
  if (report.other != report.thread) text += fmt::format(" after thread {}", report.other);
  if (races_.num_reports() > 1) text += fmt::format(" (and {} more)", races_.num_reports() - 1);
  const auto& [code, site] = report.place;
  if (site.file != nullptr) text += " at " + simt::to_string(site);
  Dl_info program = {};
  if (code != nullptr && dladdr(code, &program) != 0)
    text += fmt::format("; addr2line -e {} {:#x} names the line", program.dli_fname,
                        static_cast<const char*>(code) - static_cast<const char*>(program.dli_fbase) - 1);
  return text;
}

std::string Block::describe_waiting() const {
  std::map<std::string, std::pair<int, int>> places;  // to the number of threads and the first of them
  for (int i = 0; i < num_lanes_; ++i) {
    const Lane& lane = lanes_[i];
    if (lane.state != Lane::State::kWaiting) continue;
    auto& [count, first] = places[fmt::format("{} at {}", lane.waits_in, simt::to_string(lane.waits_at))];
    if (count++ == 0) first = i;
  }
  std::string text;
  for (const auto& [where, who] : places)
    text += fmt::format("{}{} thread(s), the first is {}, wait in {}", text.empty() ? "" : "; ", who.first, who.second, where);
  return text;
}

// ---- what a kernel asks of its block

void Block::sync_threads(Site site) {
  if (num_done_ > 0)
    fail("divergent barrier: {} thread(s) of the block had returned before __syncthreads at {}", num_done_,
         simt::to_string(site));
  if (num_at_barrier_ == 0) {
    barrier_site_ = site;
  } else if (!(barrier_site_ == site)) {
    fail("divergent barrier: this thread is in __syncthreads at {}, others wait at {}", simt::to_string(site),
         simt::to_string(barrier_site_));
  }
  if (++num_at_barrier_ == num_lanes_) {
    num_at_barrier_ = 0;
    ++statistics_.num_barriers;
    if (detects_races_) races_.sync_block();
    for (int i = 0; i < num_lanes_; ++i) make_ready(lanes_[i]);
  }
  wait("__syncthreads", site);
}

void sync_threads(Site site) { block().sync_threads(site); }

unsigned char* dynamic_shared() { return block().shared().dynamic(); }

void* shared_array(const void* key, std::size_t bytes, const char* name) {
  void* const array = block().shared().array(key, bytes, name);
  if (array == nullptr) block().fail("the shared array {} of {} bytes does not fit", name, bytes);
  return array;
}

// ---- all blocks

namespace {

Block& the_block() {
  static Block block;
  return block;
}

std::mutex launch_mutex;

AccessFault::Escape escape_of_running_lane() {
  if (running_block == nullptr) return {};
  return {running_block->running().fiber.stack_top(), [] { running_block->end_by_access_fault(); }};
}

}  // namespace

void run_grid(const Grid& grid) {
  if (running_block != nullptr) throw Error("simt: a kernel launches a kernel");
  const std::lock_guard lock(launch_mutex);
  Block& block = the_block();
  ++block.statistics().num_launches;
  const AccessFault accesses(&escape_of_running_lane);
  for (unsigned z = 0; z < grid.blocks.z; ++z) {
    for (unsigned y = 0; y < grid.blocks.y; ++y) {
      for (unsigned x = FirstBlock::value(); x < grid.blocks.x; ++x) block.run(grid, {x, y, z});
    }
  }
  check_device_margins();
}

bool has_statistics() { return true; }

Statistics take_statistics() {
  const std::lock_guard lock(launch_mutex);
  return std::exchange(the_block().statistics(), {});
}

}  // namespace simt
