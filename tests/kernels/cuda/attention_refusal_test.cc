// What the attention launchers refuse, each by its name, before anything is launched.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tests/kernels/cuda/attention_problem.h"
#include "tests/support/expect_error.h"

namespace quire::testing {
namespace {

using Change = std::function<void(AttentionArgs&)>;

void expect_refusal(ErrorCode code, const char* part, const Change& change) {
  for (const AttentionKernel kernel : {AttentionKernel::kPrefill, AttentionKernel::kDecode}) {
    DeviceAttention attention({.sequences = {{1, 1, 20}}});
    AttentionArgs args = attention.args();
    change(args);
    EXPECT_ERROR(attention.run(args, {.kernel = kernel}), code, part);
  }
}

TEST(AttentionRefusals, Rows) {
  constexpr ErrorCode kCode = ErrorCode::kInvalidArgument;
  expect_refusal(kCode, "attention: q is F32", [](AttentionArgs& args) { args.q.dtype = DType::kF32; });
  expect_refusal(kCode, "attention: out is BF16", [](AttentionArgs& args) { args.out.dtype = DType::kBF16; });
  expect_refusal(kCode, "attention: out is", [](AttentionArgs& args) { args.out.shape[0] = 2; });
  expect_refusal(kCode, "q is F16 [1, 4, 64], must be 16-byte aligned",
                 [](AttentionArgs& args) { args.q.data = static_cast<std::byte*>(args.q.data) + 8; });
  expect_refusal(ErrorCode::kUnsupported, "q is 260", [](AttentionArgs& args) { args.q.outer_stride = 260; });
}

TEST(AttentionRefusals, KeysAndValues) {
  constexpr ErrorCode kCode = ErrorCode::kUnsupported;
  expect_refusal(kCode, "head_size is 72, must be 64, 80, 96, 128 or 256", [](AttentionArgs& args) {
    args.q.shape[2] = args.out.shape[2] = 72;
    args.kv.head_size = 72;
  });
  expect_refusal(kCode, "kv.head_size is 128", [](AttentionArgs& args) { args.kv.head_size = 128; });
  expect_refusal(kCode, "kv.dtype is BF16", [](AttentionArgs& args) { args.kv.dtype = DType::kBF16; });
  for (const int block_size : {0, 1, 4, 12, 264}) {
    expect_refusal(kCode, "kv.block_size is", [&](AttentionArgs& args) { args.kv.block_size = block_size; });
  }
  expect_refusal(kCode, "kv.block_stride is 2050", [](AttentionArgs& args) { args.kv.block_stride = 2050; });
  expect_refusal(ErrorCode::kInvalidArgument, "16-byte aligned",
                 [](AttentionArgs& args) { args.kv.values = static_cast<std::byte*>(args.kv.values) + 2; });
}

TEST(PeerBugs, B064_HeadsThatDoNotDivideAreRefused) {
  for (const int num_kv_heads : {0, 3, 8}) {
    expect_refusal(ErrorCode::kUnsupported, "kv.num_heads is", [&](AttentionArgs& args) { args.kv.num_heads = num_kv_heads; });
  }
}

TEST(AttentionRefusals, Indices) {
  constexpr ErrorCode kCode = ErrorCode::kInvalidArgument;
  expect_refusal(kCode, "kv_lens is", [](AttentionArgs& args) { args.kv_lens.dtype = DType::kI64; });
  expect_refusal(kCode, "q_indptr is", [](AttentionArgs& args) { args.q_indptr.shape[0] = 1; });
  expect_refusal(kCode, "page_indptr is", [](AttentionArgs& args) { args.page_indptr.shape[0] = 3; });
  expect_refusal(kCode, "page_indices is", [](AttentionArgs& args) { args.page_indices.dtype = DType::kU8; });
}

TEST(AttentionRefusals, Numbers) {
  for (const float scale : {0.0f, -1.0f, NAN, INFINITY}) {
    expect_refusal(ErrorCode::kUnsupported, "scale is", [&](AttentionArgs& args) { args.scale = scale; });
  }
  for (const float softcap : {-1.0f, NAN, INFINITY}) {
    expect_refusal(ErrorCode::kInvalidArgument, "softcap is", [&](AttentionArgs& args) { args.softcap = softcap; });
  }
  expect_refusal(ErrorCode::kUnsupported, "window is -1", [](AttentionArgs& args) { args.window = -1; });
}

TEST(AttentionRefusals, Plans) {
  DeviceAttention attention({.sequences = {{1, 1, 700}}, .num_heads = 2, .num_kv_heads = 1});
  const AttentionRun split{.kernel = AttentionKernel::kDecode, .num_sms = 1000};
  cuda::SplitPlan plan = attention.plan(split);
  ASSERT_EQ(plan.combines.size(), 1u);
  AttentionRun other = split;
  other.row_tile = 64;
  EXPECT_ERROR(attention.run(attention.args(), other), ErrorCode::kUnsupported, "plan.row_tile is 64");
  ++plan.waves[0].num_items;
  EXPECT_ERROR(attention.run(attention.args(), split, plan), ErrorCode::kInvalidArgument, "plan.items is");
  --plan.waves[0].num_items;
  ++plan.waves[0].num_combines;
  EXPECT_ERROR(attention.run(attention.args(), split, plan), ErrorCode::kInvalidArgument, "plan.combines is");
  DeviceAttention narrow({.sequences = {{1, 1, 700}}, .num_heads = 2, .num_kv_heads = 1, .head_size = 80});
  EXPECT_ERROR(narrow.run(narrow.args(), {.row_tile = 128}), ErrorCode::kUnsupported, "plan.row_tile is 128");
}

}  // namespace
}  // namespace quire::testing
