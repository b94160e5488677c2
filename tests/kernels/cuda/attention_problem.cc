#include "tests/kernels/cuda/attention_problem.h"

#include <algorithm>
#include <cstring>

#include "core/float16.h"

namespace quire::testing {
namespace {

// The elements of a pool or of queries, as bits.
std::vector<std::uint16_t> bits_of(const std::vector<std::byte>& pool) {
  std::vector<std::uint16_t> bits(pool.size() / 2);
  std::memcpy(bits.data(), pool.data(), pool.size());
  return bits;
}
std::vector<std::uint16_t> bits_of(const std::vector<float>& values, DType dtype) {
  std::vector<std::uint16_t> bits;
  for (const float value : values) bits.push_back(from_float(value, dtype));
  return bits;
}

// A list of structs of int32 as the kernel's table, with `padding` rows of -1 behind it.
template <typename Row>
std::vector<std::int32_t> to_table(const std::vector<Row>& rows, int padding) {
  constexpr std::size_t kWords = sizeof(Row) / sizeof(std::int32_t);
  std::vector<std::int32_t> table((rows.size() + static_cast<std::size_t>(padding)) * kWords, -1);
  if (!rows.empty()) std::memcpy(table.data(), rows.data(), rows.size() * sizeof(Row));
  return table;
}

}  // namespace

float to_float(std::uint16_t bits, DType dtype) { return widen(bits, dtype); }
std::uint16_t from_float(float value, DType dtype) { return narrow(value, dtype); }

DeviceAttention::DeviceAttention(const AttentionCase& attention)
    : layout_(attention),
      q_(bits_of(layout_.queries(), attention.dtype)),
      out_(q_.size()),
      keys_(bits_of(layout_.pool(PagedLayout::Stream::kKey))),
      values_(bits_of(layout_.pool(PagedLayout::Stream::kValue))),
      q_indptr_(layout_.q_indptr()),
      kv_lens_(layout_.kv_lens()),
      page_indptr_(layout_.page_indptr()),
      pages_(layout_.pages()) {}

AttentionArgs DeviceAttention::args() const {
  const AttentionCase& attention = layout_.attention();
  const auto view = [&](const simt::DeviceBuffer<std::uint16_t>& rows) {
    return TensorView(rows.data(), attention.dtype, {layout_.q_indptr().back(), attention.num_heads, attention.head_size});
  };
  AttentionArgs args = layout_.args(view(q_), view(out_), keys_.data(), values_.data());
  layout_.set_tables(args, q_indptr_.data(), kv_lens_.data(), page_indptr_.data(), pages_.data());
  return args;
}

cuda::SplitPlan DeviceAttention::plan(const AttentionRun& run) const {
  const AttentionCase& attention = layout_.attention();
  const cuda::SplitShape shape{
      attention.num_heads, attention.num_kv_heads, attention.head_size, attention.window, run.num_sms, run.rule,
      run.workspace_bytes};
  return run.kernel == AttentionKernel::kDecode ? cuda::plan_decode(shape, layout_.q_indptr(), layout_.kv_lens())
                                                : cuda::plan_prefill(shape, layout_.q_indptr(), layout_.kv_lens());
}

std::vector<float> DeviceAttention::run(const AttentionRun& run) { return this->run(args(), run); }

std::vector<float> DeviceAttention::run(const AttentionArgs& args, const AttentionRun& run, const cuda::SplitPlan& plan) {
  const simt::DeviceBuffer<float> workspace(
      static_cast<std::size_t>(cuda::partial_bytes(plan.num_partial_rows, layout_.attention().head_size)) / sizeof(float));
  std::fill(out_.begin(), out_.end(), std::uint16_t{0xffff});
  launch(args, run, plan, workspace.data());
  std::vector<float> out;
  for (const std::uint16_t bits : out_) out.push_back(to_float(bits, layout_.attention().dtype));
  return out;
}

void DeviceAttention::launch(const AttentionArgs& args, const AttentionRun& run, const cuda::SplitPlan& plan,
                             float* workspace) const {
  const simt::DeviceBuffer<std::int32_t> items(to_table(plan.items, run.padding));
  const simt::DeviceBuffer<std::int32_t> combines(to_table(plan.combines, run.padding));
  std::vector<cuda::SplitWave> waves = plan.waves;
  if (!waves.empty() && run.padding > 0) {
    waves.back().num_items += run.padding;
    waves.back().num_combines += run.padding;
  }
  cuda::AttentionPlan device_plan;
  device_plan.items = TensorView(items.data(), DType::kI32, {static_cast<std::int64_t>(items.size()) / 6, 6});
  device_plan.combines = TensorView(combines.data(), DType::kI32, {static_cast<std::int64_t>(combines.size()) / 5, 5});
  device_plan.waves = waves;
  device_plan.row_tile = run.row_tile > 0 ? run.row_tile : plan.row_tile;
  device_plan.num_partial_rows = plan.num_partial_rows;
  device_plan.workspace = workspace;
  (run.kernel == AttentionKernel::kDecode ? cuda::decode_attention : cuda::prefill_attention)(args, device_plan, nullptr);
}

std::vector<double> DeviceAttention::expected() const {
  std::vector<float> q;
  for (const std::uint16_t bits : q_) q.push_back(to_float(bits, layout_.attention().dtype));
  return layout_.expected(q, keys_.data(), values_.data());
}

std::vector<float> run_attention(const AttentionCase& attention, const AttentionRun& run) {
  return DeviceAttention(attention).run(run);
}

}  // namespace quire::testing
