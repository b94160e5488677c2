#include "tests/support/paged_layout.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "core/float16.h"
#include "core/math.h"
#include "tests/support/cpu_variants.h"
#include "tests/support/reference.h"

namespace quire::testing {
namespace {

constexpr std::int32_t kWild = 0x7fffffff;

void store(std::vector<std::byte>& pool, DType dtype, std::size_t element, float value) {
  if (dtype == DType::kF32) {
    std::memcpy(pool.data() + element * 4, &value, 4);
  } else {
    const std::uint16_t bits = narrow(value, dtype);
    std::memcpy(pool.data() + element * 2, &bits, 2);
  }
}

float load(const void* pool, DType dtype, std::size_t element) {
  if (dtype == DType::kF32) return static_cast<const float*>(pool)[element];
  return widen(static_cast<const std::uint16_t*>(pool)[element], dtype);
}

}  // namespace

PagedLayout::PagedLayout(const AttentionCase& attention)
    : case_(attention), block_stride_(std::int64_t{attention.num_kv_heads} * attention.block_size * attention.head_size) {
  for (const PagedSequence& s : case_.sequences) {
    q_indptr_.push_back(q_indptr_.back() + s.num_new);
    kv_lens_.push_back(s.kv_len);
  }
  lay_out_pages();
}

bool PagedLayout::is_seen(const PagedSequence& s, int position) const {
  const int first = std::max(0, s.kv_len - s.num_new);
  return s.num_new > 0 && position < s.kv_len && (case_.window == 0 || position > first - case_.window);
}

void PagedLayout::lay_out_pages() {
  for (const PagedSequence& s : case_.sequences) {
    for (int b = 0; b < ceil_div(s.kv_len, case_.block_size) + case_.spare_entries; ++b) {
      bool seen = false;
      for (int i = 0; i < case_.block_size; ++i) seen |= is_seen(s, b * case_.block_size + i);
      pages_.push_back(seen ? num_blocks_++ : kWild);
    }
    page_indptr_.push_back(static_cast<std::int32_t>(pages_.size()));
  }
  std::vector<std::int32_t> order(static_cast<std::size_t>(num_blocks_));
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    const auto rank = [&](std::int32_t i) { return hash(case_.placement * 0x10001 + static_cast<std::uint64_t>(i)); };
    return rank(a) < rank(b);
  });
  for (std::int32_t& page : pages_) {
    if (page != kWild) page = order[static_cast<std::size_t>(page)];
  }
}

std::size_t PagedLayout::element_of(std::size_t s, int position, int kv_head) const {
  const std::int64_t page = pages_[static_cast<std::size_t>(page_indptr_[s] + position / case_.block_size)];
  const std::int64_t row = std::int64_t{kv_head} * case_.block_size + position % case_.block_size;
  return static_cast<std::size_t>(page * block_stride_ + row * case_.head_size);
}

std::uint64_t PagedLayout::row_of(const PagedSequence& s, Stream which, int position, int head) {
  return hash(hash(hash(s.seed * 4 + static_cast<std::uint64_t>(which)) + static_cast<std::uint64_t>(position)) +
              static_cast<std::uint64_t>(head));
}

std::vector<float> PagedLayout::queries() const {
  std::vector<float> q;
  for (const PagedSequence& s : case_.sequences) {
    for (int i = 0; i < s.num_new; ++i) {
      for (int h = 0; h < case_.num_heads; ++h) {
        const std::uint64_t row = row_of(s, Stream::kQuery, s.kv_len - s.num_new + i, h);
        for (std::uint64_t d = 0; d < static_cast<std::uint64_t>(case_.head_size); ++d)
          q.push_back(noise(row + d, case_.q_scale));
      }
    }
  }
  return q;
}

std::vector<std::byte> PagedLayout::pool(Stream which) const {
  const auto elements = static_cast<std::size_t>(block_stride_ * std::max(num_blocks_, 1));
  std::vector<std::byte> pool(elements * static_cast<std::size_t>(block_bytes(case_.dtype)));
  for (std::size_t i = 0; i < elements; ++i) store(pool, case_.dtype, i, case_.poison);
  for (std::size_t s = 0; s < case_.sequences.size(); ++s) {
    const PagedSequence& sequence = case_.sequences[s];
    for (int position = 0; position < sequence.kv_len; ++position) {
      if (!is_seen(sequence, position)) continue;
      for (int h = 0; h < case_.num_kv_heads; ++h) {
        const std::size_t element = element_of(s, position, h);
        const std::uint64_t row = row_of(sequence, which, position, h);
        for (std::size_t d = 0; d < static_cast<std::size_t>(case_.head_size); ++d)
          store(pool, case_.dtype, element + d, noise(row + d, 1.0f));
      }
    }
  }
  return pool;
}

float PagedLayout::scale() const {
  return case_.scale > 0.0f ? case_.scale : 1.0f / std::sqrt(static_cast<float>(case_.head_size));
}

AttentionArgs PagedLayout::args(TensorView q, TensorView out, void* keys, void* values) const {
  AttentionArgs args;
  args.q = q;
  args.out = out;
  args.kv = {keys, values, case_.dtype, block_stride_, case_.block_size, case_.num_kv_heads, case_.head_size};
  args.scale = scale();
  args.window = case_.window;
  args.softcap = case_.softcap;
  return args;
}

void PagedLayout::set_tables(AttentionArgs& args, void* q_indptr, void* kv_lens, void* page_indptr, void* pages) const {
  const auto num_sequences = static_cast<std::int64_t>(kv_lens_.size());
  args.q_indptr = TensorView(q_indptr, DType::kI32, {num_sequences + 1});
  args.kv_lens = TensorView(kv_lens, DType::kI32, {num_sequences});
  args.page_indptr = TensorView(page_indptr, DType::kI32, {num_sequences + 1});
  args.page_indices = TensorView(pages, DType::kI32, {static_cast<std::int64_t>(pages_.size())});
}

std::vector<double> PagedLayout::expected(const std::vector<float>& q, const void* keys, const void* values) const {
  std::vector<double> out;
  const auto row_elements = static_cast<std::ptrdiff_t>(case_.num_heads) * case_.head_size;
  for (std::size_t s = 0; s < case_.sequences.size(); ++s) {
    reference::AttentionInput in;
    in.q.assign(q.begin() + q_indptr_[s] * row_elements, q.begin() + q_indptr_[s + 1] * row_elements);
    for (int position = 0; position < kv_lens_[s]; ++position) {
      const bool seen = is_seen(case_.sequences[s], position);
      for (int h = 0; h < case_.num_kv_heads; ++h) {
        for (int d = 0; d < case_.head_size; ++d) {
          const std::size_t element = seen ? element_of(s, position, h) + static_cast<std::size_t>(d) : 0;
          in.k.push_back(seen ? load(keys, case_.dtype, element) : NAN);
          in.v.push_back(seen ? load(values, case_.dtype, element) : NAN);
        }
      }
    }
    in.num_positions = kv_lens_[s];
    in.num_heads = case_.num_heads;
    in.num_kv_heads = case_.num_kv_heads;
    in.head_size = case_.head_size;
    in.scale = scale();
    in.window = case_.window;
    in.softcap = case_.softcap;
    const std::vector<double> rows = reference::attention(in);
    out.insert(out.end(), rows.begin(), rows.end());
  }
  return out;
}

}  // namespace quire::testing
