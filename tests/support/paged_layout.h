// An attention case in paged form, with everything that must not be read poisoned: slots nobody wrote hold `poison`, page entries
// of blocks nobody sees are wild, physical blocks are in random order. A sequence's numbers depend on its seed, the position, the
// head and the element alone, so the same sequence can be laid out, batched and cut in many ways and must give the same bits in
// each. The layout is numbers on the host; who runs it owns the memory: PagedAttention for the CPU, DeviceAttention for CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/ops.h"

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
  float scale = 0.0f;           // 0: 1 / sqrt(D)
  float q_scale = 1.0f;         // of the queries' noise
  DType dtype = DType::kF16;    // of keys and values
  std::uint64_t placement = 1;  // seed of the order of physical blocks
  float poison = __builtin_nanf("");
  int spare_entries = 2;  // of a page table, wild, behind the sequence's end
};

class PagedLayout {
 public:
  enum class Stream { kQuery, kKey, kValue };

  explicit PagedLayout(const AttentionCase& attention);

  const AttentionCase& attention() const { return case_; }
  const std::vector<std::int32_t>& q_indptr() const { return q_indptr_; }
  const std::vector<std::int32_t>& kv_lens() const { return kv_lens_; }
  const std::vector<std::int32_t>& page_indptr() const { return page_indptr_; }
  const std::vector<std::int32_t>& pages() const { return pages_; }
  std::int64_t block_stride() const { return block_stride_; }  // elements

  bool is_seen(const PagedSequence& sequence, int position) const;  // by some row
  // Where a head's row of a position begins in a pool, in elements. REQUIRES: it is seen.
  std::size_t element_of(std::size_t sequence, int position, int kv_head) const;

  std::vector<float> queries() const;               // [T, Hq, D]
  std::vector<std::byte> pool(Stream which) const;  // all blocks of keys or values, of the case's type

  // The arguments without tensors: scale, window, softcap, and the shapes of the tables at these addresses.
  AttentionArgs args(TensorView q, TensorView out, void* keys, void* values) const;
  void set_tables(AttentionArgs& args, void* q_indptr, void* kv_lens, void* page_indptr, void* pages) const;

  // By reference::attention, of the queries [T, Hq, D] and of keys and values as the pools hold them.
  std::vector<double> expected(const std::vector<float>& q, const void* keys, const void* values) const;

 private:
  void lay_out_pages();
  // Elements of the row are noise of this and the numbers after it.
  static std::uint64_t row_of(const PagedSequence& sequence, Stream which, int position, int head);
  float scale() const;

  AttentionCase case_;
  std::int64_t block_stride_;
  std::int32_t num_blocks_ = 0;
  std::vector<std::int32_t> q_indptr_{0}, kv_lens_, page_indptr_{0}, pages_;
};

}  // namespace quire::testing
