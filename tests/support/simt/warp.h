// Warp operations: what the lanes of a mask do together (shuffles, votes, __syncwarp, ldmatrix, mma). Each lane puts in its
// operand and waits; when all of the mask are there, each takes its result. A lane may be one operation ahead of another.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "simt/site.h"

namespace simt {

struct WarpOperation {
  static constexpr std::size_t kMaxBytes = 48;        // of an operand; mma's: a 16, b 8, d 16
  static constexpr std::size_t kMaxResultBytes = 16;  // mma's d, ldmatrix's r

  struct Kind {
    const char* name = "";  // "__shfl_xor_sync"
    std::size_t operand_bytes = 0;
  };

  Kind kind;
  Site site;
  std::uint32_t mask = 0;
  std::uint32_t arrived = 0;  // lanes
  std::uint32_t left = 0;
  alignas(16) std::array<std::array<std::byte, kMaxBytes>, 32> operands = {};
  alignas(16) std::array<std::array<std::byte, kMaxResultBytes>, 32> results = {};
};

struct Warp {
  std::uint32_t lanes = 0;     // that exist
  std::uint32_t returned = 0;  // from the kernel
  std::uint32_t open = 0;      // set of the operations that somebody has not left yet
  std::array<WarpOperation, 8> operations = {};
};

}  // namespace simt
