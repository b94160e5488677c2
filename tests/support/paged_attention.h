// An attention case in paged form, with everything that must not be read poisoned: slots nobody wrote hold NaN, page entries of
// blocks nobody sees are wild, physical blocks are in random order. A sequence's numbers depend on its seed, the position, the
// head and the element alone, so the same sequence can be laid out in many ways and must give the same bits in each.
#pragma once

#include <cstddef>
#include <vector>

#include "core/parallel.h"
#include "kernels/cpu/kernels.h"
#include "tests/support/reference.h"

namespace quire::testing {

struct PagedSequence {
  std::uint64_t seed = 0;
  int num_new = 1;
  int kv_len = 1;
};

struct AttentionCase {
  std::vector<PagedSequence> sequences;
  int num_heads = 4;
  int num_kv_heads = 2;
  int head_size = 64;
  int block_size = 16;
  int window = 0;
  float softcap = 0.0f;
  float q_scale = 1.0f;  // of the queries' noise
  DType dtype = DType::kF16;
  std::uint64_t placement = 1;  // seed of the order of physical blocks
  float poison = __builtin_nanf("");
};

class PagedAttention {
 public:
  explicit PagedAttention(const AttentionCase& attention);
  PagedAttention(const PagedAttention&) = delete;

  AttentionArgs args();  // `out` is NaN until run
  std::vector<float> run(const cpu::KernelTable& table, int num_threads = 1);
  std::vector<double> expected() const;  // by reference::attention, of keys and values as the pool holds them

 private:
  bool is_seen(const PagedSequence& sequence, int position) const;
  void lay_out_pages();
  void write_kv();
  float stored(const std::vector<std::byte>& pool, std::size_t element) const;
  std::size_t element_of(std::size_t sequence, int position, int kv_head) const;
  std::vector<float> kv_row(const PagedSequence& sequence, int position, bool values) const;

  AttentionCase case_;
  float scale_;
  std::size_t row_elements_;  // of q: Hq D
  std::vector<std::byte> keys_, values_;
  std::vector<float> q_, out_;
  std::vector<std::int32_t> q_indptr_{0}, kv_lens_, page_indptr_{0}, pages_;
  KvLayer layer_;
};

// The same, in short.
std::vector<float> run_attention(const AttentionCase& attention, const cpu::KernelTable& table, int num_threads = 1);

}  // namespace quire::testing
