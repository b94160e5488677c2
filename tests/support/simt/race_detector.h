// RaceDetector: finds accesses to shared memory that no barrier orders, and reads of bytes that nobody wrote. It needs to see
// every access, so it works in the hooks build only (see hooks.cc). Order comes from __syncthreads, from __syncwarp among the
// lanes of its mask, and from nothing else: shuffles order no memory. A copy from global memory writes from its issue until the
// wait. Per byte it remembers the last writer and two readers, of different warps if there were such; of more readers it forgets
// some.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "simt/site.h"

namespace simt {

class RaceDetector {
 public:
  enum class Access : std::uint8_t { kRead, kWrite, kAtomic, kCopyIssue, kCopyLanding };

  struct Place {  // of an access: where the kernel names it, else its code
    const void* code = nullptr;
    Site site = {};
  };
  struct Report {
    const char* what;    // "read after write"
    std::size_t offset;  // in shared memory, bytes
    int thread;          // in the block, who found it
    int other;           // the earlier one; the same where there is no other
    Place place;         // of the later access
  };

  // Forgets the block before.
  void prepare();
  // Thread `thread` accesses [offset, offset + bytes).
  void access(Access access, int thread, std::size_t offset, std::size_t bytes, Place place);
  void sync_block() { ++epoch_; }
  void sync_lanes(int warp, std::uint32_t mask);

  // What was found first in this block, and how much.
  const Report& first() const { return first_; }
  std::int64_t num_reports() const { return num_reports_; }

 private:
  static constexpr int kLanes = 32;
  static constexpr std::uint16_t kNobody = 0xFFFF;

  struct Mark {  // an access
    std::uint16_t thread = kNobody;
    bool atomic = false;
    std::uint32_t epoch = 0;  // number of __syncthreads before it
    std::uint32_t clock = 0;  // of the lane, counts its __syncwarp
  };
  struct Cell {              // of a byte
    bool in_flight = false;  // between issue and landing of a copy
    Mark writer;
    std::array<Mark, 2> readers;
  };

  // Most accesses are of 16 bytes: one cell stands for all of an aligned piece until an access to a part of it.
  static constexpr std::size_t kPieceBytes = 16;
  struct Piece {
    std::uint32_t block = 0;  // of another one: nothing has happened
    bool whole = true;
    Cell cell;
  };

  Mark mark(int thread, bool atomic) const;
  bool races(const Mark& earlier, const Mark& now) const;
  bool check(const Cell& cell, Access access, const Mark& now, std::size_t offset, Place place);
  static void update(Cell& cell, Access access, const Mark& now);
  void report(const Report& report);

  std::vector<Piece> pieces_;
  std::vector<Cell> cells_;  // of bytes, where their piece is not whole
  std::uint32_t block_ = 0;
  std::uint32_t epoch_ = 0;
  // known_[warp][a][b]: the clock of lane b up to which lane a is ordered after it; [a][a] is the lane's own clock.
  std::array<std::array<std::array<std::uint32_t, kLanes>, kLanes>, kLanes> known_ = {};
  Report first_ = {};
  std::int64_t num_reports_ = 0;
};

}  // namespace simt
