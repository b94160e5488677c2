// TrafficCounter: what the memory system would have to do for a block. It gathers the accesses of single lanes into requests of
// their warp: those made by the same place in the source, each lane's k-th visit there. That is exact where the lanes of a warp
// take the same path. Model: global memory moves in sectors of 32 bytes; shared memory has 32 banks of 4 bytes and serves, per
// phase, one word of each bank to 32 lanes (up to 4 bytes each), 16 (8 bytes) or 8 (16 bytes); equal words count once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "simt/emulator.h"

namespace simt {

class TrafficCounter {
 public:
  enum class Kind : std::uint8_t {
    kGlobalLoad,
    kGlobalStore,
    kCopyRead,
    kSharedLoad,
    kSharedStore,
    kCopyWrite,
    kMatrixLoad,
  };

  // Forgets the block before.
  void prepare();
  // `place` tells instructions of the source apart.
  void note(Kind kind, std::uint64_t place, int thread, const void* address, std::size_t bytes);
  // Adds what the block did.
  void add_to(Statistics& statistics);

 private:
  struct LaneAccess {
    Kind kind;
    std::uint8_t lane;
    std::uint16_t warp;
    std::uint32_t visit;
    std::uint64_t place;
    std::uintptr_t address;
    std::size_t bytes;
  };
  using Request = std::vector<LaneAccess>;

  static void add_global(const LaneAccess* begin, const LaneAccess* end, GlobalTraffic& traffic);
  static void add_shared(const LaneAccess* begin, const LaneAccess* end, SharedTraffic& traffic);

  std::vector<LaneAccess> accesses_;
  std::unordered_map<std::uint64_t, std::uint32_t> visits_;  // by place, kind and thread
};

}  // namespace simt
