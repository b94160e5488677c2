// Layout of the scratch memory of the CPU attention, one piece per thread, in floats:
//   scores [kAttentionRows, score_stride]   one row per query row and head of a tile, then their exponentials
//   q, out [kAttentionRows, kMaxHeadSize]   the tile's queries and outputs, heads padded to whole vectors
//   kv     [kAttentionGroup, kMaxHeadSize]  keys or values of a group of positions, widened or as stored
#pragma once

#include <cstdint>

#include "kernels/cpu/kernels.h"

namespace quire::cpu {

inline constexpr int kAttentionRows =
    24;  // query rows times heads of one KV head, worked on together; more only push scores out of the cache
inline constexpr int kAttentionGroup = 16;  // positions; groups begin at multiples of it

// A vector more than the scores need, so that the rows of a tile do not all fall on the same cache sets.
constexpr std::int64_t attention_score_stride(std::int64_t max_kv_len) {
  return (max_kv_len + kAttentionGroup - 1) / kAttentionGroup * kAttentionGroup + kAttentionGroup;
}

constexpr std::int64_t attention_thread_floats(std::int64_t max_kv_len) {
  return kAttentionRows * attention_score_stride(max_kv_len) +
         (2 * kAttentionRows + kAttentionGroup) * std::int64_t{kMaxHeadSize};
}

}  // namespace quire::cpu
