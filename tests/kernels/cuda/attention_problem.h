// DeviceAttention: a case of paged_layout.h in device memory, for the CUDA kernels. BF16 or F16 queries, keys and values.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/kernels.h"
#include "tests/support/paged_layout.h"
#include "tests/support/simt/device_memory.h"

namespace quire::testing {

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
  explicit DeviceAttention(const AttentionCase& attention);

  AttentionArgs args() const;  // `out` is what the last run left
  cuda::SplitPlan plan(const AttentionRun& run) const;
  std::vector<float> run(const AttentionRun& run);
  // args() with changes, `out` not among them.
  std::vector<float> run(const AttentionArgs& args, const AttentionRun& run) { return this->run(args, run, plan(run)); }
  std::vector<float> run(const AttentionArgs& args, const AttentionRun& run, const cuda::SplitPlan& plan);
  // Into args.out, which is anywhere. `workspace` has room for the plan's partial rows.
  void launch(const AttentionArgs& args, const AttentionRun& run, const cuda::SplitPlan& plan, float* workspace) const;
  std::vector<double> expected() const;  // by reference::attention, of the numbers as the device has them

  // For tests that change or watch the pool.
  simt::DeviceBuffer<std::uint16_t>& keys() { return keys_; }
  simt::DeviceBuffer<std::uint16_t>& values() { return values_; }
  const PagedLayout& layout() const { return layout_; }

 private:
  PagedLayout layout_;
  simt::DeviceBuffer<std::uint16_t> q_, out_, keys_, values_;
  simt::DeviceBuffer<std::int32_t> q_indptr_, kv_lens_, page_indptr_, pages_;
};

std::vector<float> run_attention(const AttentionCase& attention, const AttentionRun& run);

float to_float(std::uint16_t bits, DType dtype);
std::uint16_t from_float(float value, DType dtype);

}  // namespace quire::testing
