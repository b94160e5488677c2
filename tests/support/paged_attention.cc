#include "tests/support/paged_attention.h"

#include <algorithm>
#include <cmath>

namespace quire::testing {

PagedAttention::PagedAttention(const AttentionCase& attention)
    : layout_(attention),
      keys_(layout_.pool(PagedLayout::Stream::kKey)),
      values_(layout_.pool(PagedLayout::Stream::kValue)),
      q_(layout_.queries()),
      out_(q_.size(), NAN),
      q_indptr_(layout_.q_indptr()),
      kv_lens_(layout_.kv_lens()),
      page_indptr_(layout_.page_indptr()),
      pages_(layout_.pages()) {}

AttentionArgs PagedAttention::args() {
  const AttentionCase& attention = layout_.attention();
  const auto view = [&](std::vector<float>& rows) {
    return TensorView(rows.data(), DType::kF32, {q_indptr_.back(), attention.num_heads, attention.head_size});
  };
  AttentionArgs args = layout_.args(view(q_), view(out_), keys_.data(), values_.data());
  layout_.set_tables(args, q_indptr_.data(), kv_lens_.data(), page_indptr_.data(), pages_.data());
  return args;
}

std::vector<float> PagedAttention::run(const cpu::KernelTable& table, int num_threads) {
  ThreadPool pool(num_threads);
  const int longest = *std::max_element(kv_lens_.begin(), kv_lens_.end());
  std::vector<float> scratch(cpu::attention_scratch_bytes(longest, num_threads) / sizeof(float), NAN);
  out_.assign(q_.size(), NAN);
  table.attention(args(), pool, scratch.data());
  return out_;
}

std::vector<float> run_attention(const AttentionCase& attention, const cpu::KernelTable& table, int num_threads) {
  return PagedAttention(attention).run(table, num_threads);
}

}  // namespace quire::testing
