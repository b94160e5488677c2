#include "kernels/cuda/sample_rows.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "kernels/cpu/philox.h"

namespace quire::cuda {
namespace {

constexpr std::int64_t kAlignment = 8;  // of each array

std::int64_t padded(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::int64_t num_allowed(const SampleRow& row, std::int64_t vocabulary) {
  return row.num_allowed > 0 ? std::min<std::int64_t>(row.num_allowed, vocabulary) : vocabulary;
}

std::int64_t counts_bytes(const SampleRow& row) { return row.num_counts * std::int64_t{sizeof(TokenCount)}; }
std::int64_t biases_bytes(const SampleRow& row) { return row.num_biases * std::int64_t{sizeof(TokenBias)}; }
std::int64_t mask_bytes(const SampleRow& row, std::int64_t vocabulary) {
  return row.mask == nullptr ? 0 : (num_allowed(row, vocabulary) + 31) / 32 * std::int64_t{sizeof(std::uint32_t)};
}

DeviceSampleRow mirror(const SampleRow& row, std::int64_t vocabulary) {
  DeviceSampleRow out;
  out.uniform = cpu::uniform(row.seed, row.stream, row.counter);
  out.temperature = row.temperature;
  out.top_p = row.top_p;
  out.min_p = row.min_p;
  out.typical_p = row.typical_p;
  out.repetition_penalty = row.repetition_penalty;
  out.presence_penalty = row.presence_penalty;
  out.frequency_penalty = row.frequency_penalty;
  out.top_k = row.top_k;
  out.num_counts = row.num_counts;
  out.num_biases = row.num_biases;
  out.num_allowed = static_cast<std::int32_t>(num_allowed(row, vocabulary));
  out.target = row.target;
  out.num_top = row.num_top;
  out.draw = row.draw ? 1 : 0;
  out.logprob = row.logprob ? 1 : 0;
  return out;
}

}  // namespace

std::int64_t packed_bytes(const SampleRow& row, std::int64_t vocabulary) {
  return std::int64_t{sizeof(DeviceSampleRow)} + padded(counts_bytes(row)) + padded(biases_bytes(row)) +
         padded(mask_bytes(row, vocabulary));
}

std::int64_t most_packed_bytes(std::int64_t vocabulary) {
  SampleRow row;
  const std::uint32_t word = 0;
  row.num_counts = row.num_biases = static_cast<int>(vocabulary);
  row.mask = &word;
  return packed_bytes(row, vocabulary);
}

void pack_sample_rows(const SampleRow* rows, std::int64_t num_rows, std::int64_t vocabulary, std::vector<std::byte>& packed) {
  std::int64_t end = 0;
  for (std::int64_t r = 0; r < num_rows; ++r) {
    const int num_top = rows[r].num_top;
    if (num_top < 0 || num_top > SampleResult::kMaxTop)
      fail(ErrorCode::kInvalidArgument, "sample: num_top is {}, outside [0, {}]", num_top, SampleResult::kMaxTop);
    end += packed_bytes(rows[r], vocabulary);
  }
  packed.resize(static_cast<std::size_t>(end));
  std::int64_t free = num_rows * std::int64_t{sizeof(DeviceSampleRow)};  // the first byte without content
  const auto append = [&](const void* from, std::int64_t bytes) {
    if (bytes == 0) return std::int64_t{0};
    std::memcpy(packed.data() + free, from, static_cast<std::size_t>(bytes));
    const std::int64_t at = free;
    free += padded(bytes);
    return at;
  };
  for (std::int64_t r = 0; r < num_rows; ++r) {
    DeviceSampleRow row = mirror(rows[r], vocabulary);
    row.counts_at = append(rows[r].counts, counts_bytes(rows[r]));
    row.biases_at = append(rows[r].biases, biases_bytes(rows[r]));
    row.mask_at = append(rows[r].mask, mask_bytes(rows[r], vocabulary));
    std::memcpy(packed.data() + r * std::int64_t{sizeof row}, &row, sizeof row);
  }
}

}  // namespace quire::cuda
