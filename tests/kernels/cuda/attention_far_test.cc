// Attention whose rows of q and out, and whose partial results, lie beyond 2^31 and 2^32 elements: the bits of the same case
// nearby. Blocks far into the pool: attention_test.cc.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/kernels/cuda/attention_problem.h"
#include "tests/kernels/cuda/far_rows.h"

namespace quire::testing {
namespace {

constexpr int kDirect = 90, kSplit = 2100;  // positions

// The plan with its partial rows behind `rows` others.
cuda::SplitPlan moved(cuda::SplitPlan plan, std::int32_t rows) {
  for (cuda::WorkItem& item : plan.items) item.partial += item.partial < 0 ? 0 : rows;
  for (cuda::CombineItem& item : plan.combines) item.partial += rows;
  plan.num_partial_rows += rows;
  return plan;
}

// The rows beyond 2^31 elements are those of a sequence of `kv_len` positions, split if it is long. `first_partial`: where its
// parts begin in the workspace, elements.
void check(AttentionKernel kernel, int kv_len, std::int64_t first_partial) {
  constexpr int kSize = 64;
  DeviceAttention attention({.sequences = {{1, 1, 80}, {2, 2, kv_len}}, .num_heads = 2, .num_kv_heads = 1, .head_size = kSize});
  const AttentionRun run{.kernel = kernel, .num_sms = 1000};
  const cuda::SplitPlan plan = attention.plan(run);
  ASSERT_EQ(plan.combines.empty(), kv_len == kDirect);
  const FarRows q(attention.args().q), out(attention.args().out);
  attention.run(run);
  AttentionArgs args = attention.args();
  args.q = q;
  args.out = out;
  const cuda::SplitPlan far_plan = moved(plan, static_cast<std::int32_t>(first_partial / kSize));
  const simt::DeviceBuffer<float> workspace(static_cast<std::size_t>(cuda::partial_bytes(far_plan.num_partial_rows, kSize)) / 4,
                                            simt::DeviceMemory::Fill::kSparse);
  std::fill_n(workspace.begin(), plan.num_partial_rows * kSize, 0.0f);
  attention.launch(args, run, far_plan, workspace.data());
  EXPECT_TRUE(out.equals(attention.args().out));
  if (first_partial == 0) return;
  EXPECT_EQ(std::count(workspace.begin(), workspace.begin() + plan.num_partial_rows * kSize, 0.0f),
            plan.num_partial_rows * kSize);
}

TEST(PeerBugs, B056_RowsAndPartialResultsFarApart) {
  for (const AttentionKernel kernel : {AttentionKernel::kPrefill, AttentionKernel::kDecode}) {
    SCOPED_TRACE(kernel == AttentionKernel::kPrefill ? "prefill" : "decode");
    check(kernel, kDirect, 0);
    for (const std::int64_t first_partial : {std::int64_t{0}, std::int64_t{1} << 31, std::int64_t{1} << 32}) {
      SCOPED_TRACE(first_partial);
      check(kernel, kSplit, first_partial);
    }
  }
}

}  // namespace
}  // namespace quire::testing
