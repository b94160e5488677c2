#include "tests/support/paged_attention.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "core/math.h"
#include "tests/support/cpu_variants.h"

namespace quire::testing {
namespace {

constexpr std::int32_t kWild = 0x7fffffff;

// Distinct streams of noise for queries, keys and values.
std::uint64_t key_of(const PagedSequence& sequence, int what, int position, int head, int d) {
  return hash(hash(hash(sequence.seed * 4 + static_cast<std::uint64_t>(what)) + static_cast<std::uint64_t>(position)) +
              static_cast<std::uint64_t>(head)) +
         static_cast<std::uint64_t>(d);
}

// Fills a pool of `dtype` with one value. bfloat16 bits are the upper half of a float's; of half, three values are enough.
std::vector<std::byte> poisoned(std::size_t elements, DType dtype, float value) {
  std::vector<std::byte> pool(elements * static_cast<std::size_t>(block_bytes(dtype)));
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint16_t half = std::isnan(value) ? 0x7e00 : std::isinf(value) ? 0x7c00 : value == 0.0f ? 0x0000 : 0x7bff;
  const std::uint16_t short_bits = dtype == DType::kBF16 ? static_cast<std::uint16_t>(bits >> 16) : half;
  for (std::size_t i = 0; i < elements; ++i) {
    if (dtype == DType::kF32) {
      std::memcpy(pool.data() + i * 4, &bits, 4);
    } else {
      std::memcpy(pool.data() + i * 2, &short_bits, 2);
    }
  }
  return pool;
}

float half_to_float(std::uint16_t h) {
  const int exponent = (h >> 10) & 31;
  const double mantissa = h & 1023;
  const double magnitude = exponent == 0    ? std::ldexp(mantissa, -24)
                           : exponent == 31 ? (mantissa == 0 ? INFINITY : NAN)
                                            : std::ldexp(1024 + mantissa, exponent - 25);
  return static_cast<float>((h & 0x8000) != 0 ? -magnitude : magnitude);
}

}  // namespace

PagedAttention::PagedAttention(const AttentionCase& attention)
    : case_(attention),
      scale_(1.0f / std::sqrt(static_cast<float>(attention.head_size))),
      row_elements_(static_cast<std::size_t>(attention.num_heads) * static_cast<std::size_t>(attention.head_size)) {
  for (const PagedSequence& s : case_.sequences) {
    q_indptr_.push_back(q_indptr_.back() + s.num_new);
    kv_lens_.push_back(s.kv_len);
    for (int i = 0; i < s.num_new; ++i) {
      for (int h = 0; h < case_.num_heads; ++h) {
        for (int d = 0; d < case_.head_size; ++d)
          q_.push_back(noise(key_of(s, 0, s.kv_len - s.num_new + i, h, d), case_.q_scale));
      }
    }
  }
  out_.assign(q_.size(), NAN);
  lay_out_pages();
  write_kv();
}

bool PagedAttention::is_seen(const PagedSequence& s, int position) const {
  const int first = std::max(0, s.kv_len - s.num_new);
  return position < s.kv_len && (case_.window == 0 || position > first - case_.window);
}

void PagedAttention::lay_out_pages() {
  std::int32_t num_blocks = 0;
  for (const PagedSequence& s : case_.sequences) {
    const int spare = 2;  // entries beyond the sequence's end
    for (int b = 0; b < ceil_div(s.kv_len, case_.block_size) + spare; ++b) {
      bool seen = false;
      for (int i = 0; i < case_.block_size; ++i) seen |= is_seen(s, b * case_.block_size + i);
      pages_.push_back(seen ? num_blocks++ : kWild);
    }
    page_indptr_.push_back(static_cast<std::int32_t>(pages_.size()));
  }
  std::vector<std::int32_t> order(static_cast<std::size_t>(num_blocks));
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    const auto rank = [&](std::int32_t i) { return hash(case_.placement * 0x10001 + static_cast<std::uint64_t>(i)); };
    return rank(a) < rank(b);
  });
  for (std::int32_t& page : pages_) {
    if (page != kWild) page = order[static_cast<std::size_t>(page)];
  }
  const std::int64_t stride = std::int64_t{case_.num_kv_heads} * case_.block_size * case_.head_size;
  const auto elements = static_cast<std::size_t>(stride * num_blocks);
  keys_ = poisoned(elements, case_.dtype, case_.poison);
  values_ = poisoned(elements, case_.dtype, case_.poison);
  layer_ = {keys_.data(), values_.data(), case_.dtype, stride, case_.block_size, case_.num_kv_heads, case_.head_size};
}

std::vector<float> PagedAttention::kv_row(const PagedSequence& s, int position, bool values) const {
  std::vector<float> row;
  for (int h = 0; h < case_.num_kv_heads; ++h) {
    for (int d = 0; d < case_.head_size; ++d) row.push_back(noise(key_of(s, values ? 2 : 1, position, h, d)));
  }
  return row;
}

void PagedAttention::write_kv() {
  ThreadPool pool(1);
  for (std::size_t s = 0; s < case_.sequences.size(); ++s) {
    for (int position = 0; position < case_.sequences[s].kv_len; ++position) {
      if (!is_seen(case_.sequences[s], position)) continue;
      std::vector<float> k = kv_row(case_.sequences[s], position, false), v = kv_row(case_.sequences[s], position, true);
      const std::int64_t page = pages_[static_cast<std::size_t>(page_indptr_[s] + position / case_.block_size)];
      std::int64_t slot = page * case_.block_size + position % case_.block_size;
      cpu::find_kernels("portable")
          ->append_kv({TensorView(k.data(), DType::kF32, {1, case_.num_kv_heads, case_.head_size}),
                       TensorView(v.data(), DType::kF32, {1, case_.num_kv_heads, case_.head_size}),
                       TensorView(&slot, DType::kI64, {1}), layer_},
                      pool);
    }
  }
}

AttentionArgs PagedAttention::args() {
  const std::int64_t rows = q_indptr_.back();
  const auto num_sequences = static_cast<std::int64_t>(kv_lens_.size());
  AttentionArgs args;
  args.q = TensorView(q_.data(), DType::kF32, {rows, case_.num_heads, case_.head_size});
  args.out = TensorView(out_.data(), DType::kF32, {rows, case_.num_heads, case_.head_size});
  args.kv = layer_;
  args.q_indptr = TensorView(q_indptr_.data(), DType::kI32, {num_sequences + 1});
  args.kv_lens = TensorView(kv_lens_.data(), DType::kI32, {num_sequences});
  args.page_indptr = TensorView(page_indptr_.data(), DType::kI32, {num_sequences + 1});
  args.page_indices = TensorView(pages_.data(), DType::kI32, {static_cast<std::int64_t>(pages_.size())});
  args.scale = scale_;
  args.window = case_.window;
  args.softcap = case_.softcap;
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

std::size_t PagedAttention::element_of(std::size_t s, int position, int kv_head) const {
  const auto page = static_cast<std::size_t>(pages_[static_cast<std::size_t>(page_indptr_[s] + position / case_.block_size)]);
  const auto row = static_cast<std::size_t>(kv_head * case_.block_size + position % case_.block_size);
  return page * static_cast<std::size_t>(layer_.block_stride) + row * static_cast<std::size_t>(case_.head_size);
}

float PagedAttention::stored(const std::vector<std::byte>& pool, std::size_t element) const {
  if (case_.dtype == DType::kF32) return reinterpret_cast<const float*>(pool.data())[element];
  const std::uint16_t bits = reinterpret_cast<const std::uint16_t*>(pool.data())[element];
  return case_.dtype == DType::kF16 ? half_to_float(bits) : std::bit_cast<float>(std::uint32_t{bits} << 16);
}

std::vector<double> PagedAttention::expected() const {
  std::vector<double> out;
  for (std::size_t s = 0; s < case_.sequences.size(); ++s) {
    reference::AttentionInput in;
    in.q.assign(q_.begin() + static_cast<std::ptrdiff_t>(q_indptr_[s] * row_elements_),
                q_.begin() + static_cast<std::ptrdiff_t>(q_indptr_[s + 1] * row_elements_));
    for (int position = 0; position < kv_lens_[s]; ++position) {
      for (int h = 0; h < case_.num_kv_heads; ++h) {
        for (int d = 0; d < case_.head_size; ++d) {
          const bool seen = is_seen(case_.sequences[s], position);
          const std::size_t element = seen ? element_of(s, position, h) + static_cast<std::size_t>(d) : 0;
          in.k.push_back(seen ? stored(keys_, element) : NAN);
          in.v.push_back(seen ? stored(values_, element) : NAN);
        }
      }
    }
    in.num_positions = kv_lens_[s];
    in.num_heads = case_.num_heads;
    in.num_kv_heads = case_.num_kv_heads;
    in.head_size = case_.head_size;
    in.scale = scale_;
    in.window = case_.window;
    in.softcap = case_.softcap;
    const std::vector<double> rows = reference::attention(in);
    out.insert(out.end(), rows.begin(), rows.end());
  }
  return out;
}

std::vector<float> run_attention(const AttentionCase& attention, const cpu::KernelTable& table, int num_threads) {
  return PagedAttention(attention).run(table, num_threads);
}

}  // namespace quire::testing
