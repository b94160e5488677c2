// An attention case in device memory, for the emulator: BF16 or F16 queries and paged keys and values, with everything that must
// not be read poisoned. Slots nobody wrote hold `poison`, page entries of blocks nobody sees are wild, physical blocks are in
// random order. A sequence's numbers depend on its seed, the position, the head and the
// element alone, so the same sequence can be laid out, batched and cut in many ways.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/cuda/kernels.h"
#include "tests/support/simt/device_memory.h"

namespace quire::testing {

struct DeviceSequence {
  std::uint64_t seed = 0;
  int num_new = 1;
  int kv_len = 1;
};

struct AttentionProblem {
  std::vector<DeviceSequence> sequences;
  int num_heads = 4;
  int num_kv_heads = 2;
  int head_size = 64;
  int block_size = 16;
  int window = 0;
  float softcap = 0.0f;
  float scale = 0.0f;    // 0: 1 / sqrt(D)
  float q_scale = 1.0f;  // of the queries' noise
  DType dtype = DType::kF16;
  std::uint64_t placement = 1;  // seed of the order of physical blocks
  float poison = __builtin_nanf("");
  int spare_entries = 2;  // of a page table, wild, behind the sequence's end
};

enum class AttentionKernel { kPrefill, kDecode };

// How a run is planned.
struct AttentionRun {
  AttentionKernel kernel = AttentionKernel::kPrefill;
  cuda::SplitRule rule = cuda::SplitRule::kBalanced;
  int num_sms = 1;  // many: the plan splits
  std::int64_t workspace_bytes = std::int64_t{1} << 30;
  int row_tile = 0;  // 0: the plan's choice
  int padding = 0;   // items and combines of padding behind every list, launched too
};

class DeviceAttention {
 public:
  explicit DeviceAttention(const AttentionProblem& problem);

  AttentionArgs args() const;  // `out` is what the last run left
  cuda::SplitPlan plan(const AttentionRun& run) const;
  std::vector<float> run(const AttentionRun& run);
  // args() with changes, `out` not among them.
  std::vector<float> run(const AttentionArgs& args, const AttentionRun& run) { return this->run(args, run, plan(run)); }
  std::vector<float> run(const AttentionArgs& args, const AttentionRun& run, const cuda::SplitPlan& plan);
  std::vector<double> expected() const;  // by reference::attention, of the numbers as the device has them

  // For tests that change or watch the pool.
  simt::DeviceBuffer<std::uint16_t>& keys() { return *keys_; }
  simt::DeviceBuffer<std::uint16_t>& values() { return *values_; }
  std::size_t element_of(std::size_t sequence, int position, int kv_head) const;  // of the pool; REQUIRES: seen
  bool is_seen(const DeviceSequence& sequence, int position) const;               // by some row

 private:
  void lay_out_pages();
  void write_kv();
  float scale() const;

  AttentionProblem problem_;
  std::vector<std::int32_t> q_indptr_{0}, kv_lens_, page_indptr_{0}, pages_;
  std::int64_t block_stride_;
  std::optional<simt::DeviceBuffer<std::uint16_t>> q_, out_, keys_, values_;
  std::optional<simt::DeviceBuffer<std::int32_t>> device_q_indptr_, device_kv_lens_, device_page_indptr_, device_pages_;
};

std::vector<float> run_attention(const AttentionProblem& problem, const AttentionRun& run);

float to_float(std::uint16_t bits, DType dtype);
std::uint16_t from_float(float value, DType dtype);

}  // namespace quire::testing
