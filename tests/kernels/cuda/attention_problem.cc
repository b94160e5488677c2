#include "tests/kernels/cuda/attention_problem.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/math.h"
#include "tests/support/cpu_variants.h"
#include "tests/support/reference.h"
#include "tests/support/simt/half.h"

namespace quire::testing {
namespace {

constexpr std::int32_t kWild = 0x7fffffff;

enum class Noise { kQuery, kKey, kValue };

std::uint64_t key_of(const DeviceSequence& sequence, Noise what, int position, int head, int d) {
  return hash(hash(hash(sequence.seed * 4 + static_cast<std::uint64_t>(what)) + static_cast<std::uint64_t>(position)) +
              static_cast<std::uint64_t>(head)) +
         static_cast<std::uint64_t>(d);
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

float to_float(std::uint16_t bits, DType dtype) {
  return dtype == DType::kBF16 ? simt::bfloat16_to_float(bits) : simt::half_to_float(bits);
}
std::uint16_t from_float(float value, DType dtype) {
  return dtype == DType::kBF16 ? simt::float_to_bfloat16(value) : simt::float_to_half(value);
}

DeviceAttention::DeviceAttention(const AttentionProblem& problem)
    : problem_(problem), block_stride_(std::int64_t{problem.num_kv_heads} * problem.block_size * problem.head_size) {
  std::vector<std::uint16_t> q;
  for (const DeviceSequence& s : problem_.sequences) {
    q_indptr_.push_back(q_indptr_.back() + s.num_new);
    kv_lens_.push_back(s.kv_len);
    for (int i = 0; i < s.num_new; ++i) {
      for (int h = 0; h < problem_.num_heads; ++h) {
        for (int d = 0; d < problem_.head_size; ++d) {
          const std::uint64_t key = key_of(s, Noise::kQuery, s.kv_len - s.num_new + i, h, d);
          q.push_back(from_float(noise(key, problem_.q_scale), problem_.dtype));
        }
      }
    }
  }
  q_.emplace(q);
  out_.emplace(q.size());
  lay_out_pages();
  write_kv();
  device_q_indptr_.emplace(q_indptr_);
  device_kv_lens_.emplace(kv_lens_);
  device_page_indptr_.emplace(page_indptr_);
  device_pages_.emplace(pages_);
}

bool DeviceAttention::is_seen(const DeviceSequence& s, int position) const {
  const int first = std::max(0, s.kv_len - s.num_new);
  return s.num_new > 0 && position < s.kv_len && (problem_.window == 0 || position > first - problem_.window);
}

void DeviceAttention::lay_out_pages() {
  std::int32_t num_blocks = 0;
  for (const DeviceSequence& s : problem_.sequences) {
    for (int b = 0; b < ceil_div(s.kv_len, problem_.block_size) + problem_.spare_entries; ++b) {
      bool seen = false;
      for (int i = 0; i < problem_.block_size; ++i) seen |= is_seen(s, b * problem_.block_size + i);
      pages_.push_back(seen ? num_blocks++ : kWild);
    }
    page_indptr_.push_back(static_cast<std::int32_t>(pages_.size()));
  }
  std::vector<std::int32_t> order(static_cast<std::size_t>(num_blocks));
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    const auto rank = [&](std::int32_t i) { return hash(problem_.placement * 0x10001 + static_cast<std::uint64_t>(i)); };
    return rank(a) < rank(b);
  });
  for (std::int32_t& page : pages_) {
    if (page != kWild) page = order[static_cast<std::size_t>(page)];
  }
  const auto elements = static_cast<std::size_t>(block_stride_ * std::max(num_blocks, 1));
  const std::uint16_t poison = from_float(problem_.poison, problem_.dtype);
  keys_.emplace(elements);
  values_.emplace(elements);
  std::fill(keys_->begin(), keys_->end(), poison);
  std::fill(values_->begin(), values_->end(), poison);
}

std::size_t DeviceAttention::element_of(std::size_t s, int position, int kv_head) const {
  const std::int64_t page = pages_[static_cast<std::size_t>(page_indptr_[s] + position / problem_.block_size)];
  const std::int64_t row = std::int64_t{kv_head} * problem_.block_size + position % problem_.block_size;
  return static_cast<std::size_t>(page * block_stride_ + row * problem_.head_size);
}

void DeviceAttention::write_kv() {
  for (std::size_t s = 0; s < problem_.sequences.size(); ++s) {
    const DeviceSequence& sequence = problem_.sequences[s];
    for (int position = 0; position < sequence.kv_len; ++position) {
      if (!is_seen(sequence, position)) continue;
      for (int h = 0; h < problem_.num_kv_heads; ++h) {
        const std::size_t element = element_of(s, position, h);
        for (int d = 0; d < problem_.head_size; ++d) {
          const auto value = [&](Noise what) {
            return from_float(noise(key_of(sequence, what, position, h, d)), problem_.dtype);
          };
          (*keys_)[element + static_cast<std::size_t>(d)] = value(Noise::kKey);
          (*values_)[element + static_cast<std::size_t>(d)] = value(Noise::kValue);
        }
      }
    }
  }
}

float DeviceAttention::scale() const {
  return problem_.scale > 0.0f ? problem_.scale : 1.0f / std::sqrt(static_cast<float>(problem_.head_size));
}

AttentionArgs DeviceAttention::args() const {
  const std::int64_t rows = q_indptr_.back();
  const auto num_sequences = static_cast<std::int64_t>(kv_lens_.size());
  AttentionArgs args;
  args.q = TensorView(q_->data(), problem_.dtype, {rows, problem_.num_heads, problem_.head_size});
  args.out = TensorView(out_->data(), problem_.dtype, {rows, problem_.num_heads, problem_.head_size});
  args.kv = {keys_->data(),       values_->data(),       problem_.dtype,    block_stride_,
             problem_.block_size, problem_.num_kv_heads, problem_.head_size};
  args.q_indptr = TensorView(device_q_indptr_->data(), DType::kI32, {num_sequences + 1});
  args.kv_lens = TensorView(device_kv_lens_->data(), DType::kI32, {num_sequences});
  args.page_indptr = TensorView(device_page_indptr_->data(), DType::kI32, {num_sequences + 1});
  args.page_indices = TensorView(device_pages_->data(), DType::kI32, {static_cast<std::int64_t>(pages_.size())});
  args.scale = scale();
  args.window = problem_.window;
  args.softcap = problem_.softcap;
  return args;
}

cuda::SplitPlan DeviceAttention::plan(const AttentionRun& run) const {
  const cuda::SplitShape shape{problem_.num_heads, problem_.num_kv_heads, problem_.head_size, problem_.window, run.num_sms,
                               run.rule,           run.workspace_bytes};
  return run.kernel == AttentionKernel::kDecode ? cuda::plan_decode(shape, q_indptr_, kv_lens_)
                                                : cuda::plan_prefill(shape, q_indptr_, kv_lens_);
}

std::vector<float> DeviceAttention::run(const AttentionRun& run) { return this->run(args(), run); }

std::vector<float> DeviceAttention::run(const AttentionArgs& args, const AttentionRun& run, const cuda::SplitPlan& plan) {
  const simt::DeviceBuffer<std::int32_t> items(to_table(plan.items, run.padding));
  const simt::DeviceBuffer<std::int32_t> combines(to_table(plan.combines, run.padding));
  const simt::DeviceBuffer<float> workspace(
      static_cast<std::size_t>(cuda::partial_bytes(plan.num_partial_rows, problem_.head_size)) / sizeof(float));
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
  device_plan.workspace = workspace.data();
  std::fill(out_->begin(), out_->end(), std::uint16_t{0xffff});
  (run.kernel == AttentionKernel::kDecode ? cuda::decode_attention : cuda::prefill_attention)(args, device_plan, nullptr);
  std::vector<float> out;
  for (const std::uint16_t bits : *out_) out.push_back(to_float(bits, problem_.dtype));
  return out;
}

std::vector<double> DeviceAttention::expected() const {
  std::vector<double> out;
  const auto row_elements = static_cast<std::size_t>(problem_.num_heads * problem_.head_size);
  for (std::size_t s = 0; s < problem_.sequences.size(); ++s) {
    const DeviceSequence& sequence = problem_.sequences[s];
    reference::AttentionInput in;
    for (std::size_t i = static_cast<std::size_t>(q_indptr_[s]) * row_elements;
         i < static_cast<std::size_t>(q_indptr_[s + 1]) * row_elements; ++i) {
      in.q.push_back(to_float((*q_)[i], problem_.dtype));
    }
    for (int position = 0; position < sequence.kv_len; ++position) {
      const bool seen = is_seen(sequence, position);
      for (int h = 0; h < problem_.num_kv_heads; ++h) {
        for (int d = 0; d < problem_.head_size; ++d) {
          const std::size_t element = seen ? element_of(s, position, h) + static_cast<std::size_t>(d) : 0;
          in.k.push_back(seen ? to_float((*keys_)[element], problem_.dtype) : NAN);
          in.v.push_back(seen ? to_float((*values_)[element], problem_.dtype) : NAN);
        }
      }
    }
    in.num_positions = sequence.kv_len;
    in.num_heads = problem_.num_heads;
    in.num_kv_heads = problem_.num_kv_heads;
    in.head_size = problem_.head_size;
    in.scale = scale();
    in.window = problem_.window;
    in.softcap = problem_.softcap;
    const std::vector<double> rows = reference::attention(in);
    out.insert(out.end(), rows.begin(), rows.end());
  }
  return out;
}

std::vector<float> run_attention(const AttentionProblem& problem, const AttentionRun& run) {
  return DeviceAttention(problem).run(run);
}

}  // namespace quire::testing
