// SampleRow as the sampling kernel reads it, and its packing on the host: all rows of a step in one piece of memory, so that one
// copy brings them to the device. Pure functions, no CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/ops.h"

namespace quire::cuda {

// The fields of SampleRow; what that points to lies in the same piece of memory, found by its distance in bytes from the first
// row. The draw itself, which needs no logits, is made on the host.
struct DeviceSampleRow {
  double uniform = 0.0;  // in [0, 1): of (seed, stream, counter), as on the CPU
  std::int64_t counts_at = 0;
  std::int64_t biases_at = 0;
  std::int64_t mask_at = 0;  // 0: every token allowed; else ceil(num_allowed / 32) words
  float temperature = 1.0f;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float typical_p = 1.0f;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  std::int32_t top_k = 0;
  std::int32_t num_counts = 0;
  std::int32_t num_biases = 0;
  std::int32_t num_allowed = 0;  // 1 to V
  std::int32_t target = -1;
  std::int32_t num_top = 0;  // 0 to SampleResult::kMaxTop
  std::uint8_t draw = 1;
  std::uint8_t logprob = 0;
  std::uint8_t unused[2]{};
};
static_assert(sizeof(DeviceSampleRow) == 88);

// Bytes that the row takes when packed.
std::int64_t packed_bytes(const SampleRow& row, std::int64_t vocabulary);
// The most that any row takes: every token counted, biased and in the mask.
std::int64_t most_packed_bytes(std::int64_t vocabulary);

// Fills `packed` with the rows [num_rows] and what they point to. Keeps its capacity from step to step. Throws
// Error(kInvalidArgument) for num_top outside 0 to kMaxTop. `vocabulary`: V.
void pack_sample_rows(const SampleRow* rows, std::int64_t num_rows, std::int64_t vocabulary, std::vector<std::byte>& packed);

}  // namespace quire::cuda
