// What tests ask of the played NCCL: seats that are there, seats that were destroyed with calls that others had not made, which
// waits forever on a device, and calls that fail.
#pragma once

#include <cstdint>

namespace simt {

struct NcclCounts {
  std::int64_t seats = 0;          // made, neither destroyed nor aborted
  std::int64_t endless_waits = 0;  // of ncclCommDestroy
};
NcclCounts& nccl_counts();

// After `count` more that succeed, one collective call fails. Negative: never.
void fail_nccl_call_after(std::int64_t count);

}  // namespace simt
