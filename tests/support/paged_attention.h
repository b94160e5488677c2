// PagedAttention: a case of paged_layout.h in the host's memory, for the CPU's kernels. Queries and outputs are F32.
#pragma once

#include <cstddef>
#include <vector>

#include "core/parallel.h"
#include "kernels/cpu/kernels.h"
#include "tests/support/paged_layout.h"
#include "tests/support/reference.h"

namespace quire::testing {

class PagedAttention {
 public:
  explicit PagedAttention(const AttentionCase& attention);
  PagedAttention(const PagedAttention&) = delete;

  AttentionArgs args();  // `out` is NaN until run
  std::vector<float> run(const cpu::KernelTable& table, int num_threads = 1);
  std::vector<double> expected() const { return layout_.expected(q_, keys_.data(), values_.data()); }

 private:
  PagedLayout layout_;
  std::vector<std::byte> keys_, values_;
  std::vector<float> q_, out_;
  std::vector<std::int32_t> q_indptr_, kv_lens_, page_indptr_, pages_;
};

// The same, in short.
std::vector<float> run_attention(const AttentionCase& attention, const cpu::KernelTable& table, int num_threads = 1);

}  // namespace quire::testing
