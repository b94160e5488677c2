// Paged causal attention of single query rows, for prefill and decode alike. Vaswani et al. 2017, arXiv:1706.03762, eq. 1.
//
// Every order is by absolute position, so that chunking, block size, placement and freed blocks of a window leave no trace:
//   s_j = scale * (q . k_j): sixteen lanes over d, one tree; then the soft cap
//   p_j = exp(s_j - max s);  denominator: lane j mod 16, ascending, one tree
//   o   = sum of p_j v_j by fma, j ascending; then o / denominator
// A task is one query row and one KV head: the query heads that share it read its keys one after the other from the cache.
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/math_f32.h"
#include "kernels/cpu/variant.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

constexpr int kMaxHeadSize = 1024;
constexpr std::int64_t kScoresPerTask = 2048;  // positions times heads; below it a task is not worth handing out

// What a task works on: one row of one sequence, one KV head.
struct RowView {
  const char* keys = nullptr;  // of the KV head, block 0
  const char* values = nullptr;
  const std::int32_t* pages = nullptr;
  std::int64_t block_bytes = 0;  // from one block to the next
  std::int64_t block_size = 0;
  std::int64_t head_size = 0;
  std::int64_t first = 0;  // visible positions [first, last]
  std::int64_t last = 0;
};

// Calls body(position, key or value row) for every visible position, ascending. Looks up only pages that hold one.
template <typename Element, typename F>
inline void for_each_position(const RowView& view, const char* base, F body) {
  for (std::int64_t position = view.first; position <= view.last;) {
    const std::int64_t page = position / view.block_size, offset = position % view.block_size;
    const std::int64_t count =
        view.block_size - offset < view.last + 1 - position ? view.block_size - offset : view.last + 1 - position;
    const auto* rows = reinterpret_cast<const Element*>(base + view.pages[page] * view.block_bytes) + offset * view.head_size;
    for (std::int64_t i = 0; i < count; ++i) body(position + i, rows + i * view.head_size);
    position += count;
  }
}

// scores[j - base] for visible j, and -infinity around them up to multiples of sixteen.
template <typename Load>
void score(const RowView& view, const float* q, float scale, std::int64_t base, float* scores) {
  const std::int64_t end = (view.last / kLanes + 1) * kLanes;
  for (std::int64_t j = base; j < view.first; ++j) scores[j - base] = -__builtin_inff();
  for (std::int64_t j = view.last + 1; j < end; ++j) scores[j - base] = -__builtin_inff();
  for_each_position<typename Load::Element>(view, view.keys, [&](std::int64_t j, const typename Load::Element* key) {
    F32x16 dot = F32x16::zero();
    for (std::int64_t d = 0; d < view.head_size; d += kLanes) {
      dot = fma(F32x16::load(q + d), load_some<Load>(key + d, view.head_size - d), dot);
    }
    scores[j - base] = scale * reduce_add(dot);
  });
}

// Turns scores into exp(score - max), in place, and returns their sum.
float exponentiate(float* scores, std::int64_t count, float cap) {
  F32x16 most = F32x16::set1(-__builtin_inff());
  for (std::int64_t i = 0; i < count; i += kLanes) {
    F32x16 s = F32x16::load(scores + i);
    if (cap > 0.0f) {
      // Lanes outside the visible range stay -infinity.
      s = select_less(F32x16::set1(-__builtin_inff()), s, F32x16::set1(cap) * tanh(s / F32x16::set1(cap)), s);
      s.store(scores + i);
    }
    most = max(most, s);
  }
  float lanes[kLanes];
  most.store(lanes);
  float highest = lanes[0];
  for (const float lane : lanes) highest = lane > highest ? lane : highest;
  F32x16 sum = F32x16::zero();
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const F32x16 p = exp(F32x16::load(scores + i) - F32x16::set1(highest));
    p.store(scores + i);
    sum = sum + p;
  }
  return reduce_add(sum);
}

// out[d] = sum of p_j v_j[d] over j / denominator for the kChunks * 16 elements from d on; `size` of them exist.
template <typename Load, std::size_t kChunks>
void weigh(const RowView& view, const float* p, std::int64_t base, float denominator, std::int64_t d, std::int64_t size,
           float* out) {
  F32x16 sums[kChunks];
  for (F32x16& sum : sums) sum = F32x16::zero();
  for_each_position<typename Load::Element>(view, view.values, [&](std::int64_t j, const typename Load::Element* value) {
    const F32x16 weight = F32x16::set1(p[j - base]);
    for (std::size_t c = 0; c < kChunks; ++c) {
      const std::int64_t start = static_cast<std::int64_t>(c) * kLanes;
      sums[c] = fma(weight, load_some<Load>(value + d + start, size - start), sums[c]);
    }
  });
  for (std::size_t c = 0; c < kChunks; ++c) {
    const std::int64_t start = static_cast<std::int64_t>(c) * kLanes;
    store_some(sums[c] / F32x16::set1(denominator), out + d + start, size - start);
  }
}

template <typename Load>
void attend_head(const RowView& view, const AttentionArgs& args, const float* q, float* out, float* scores) {
  alignas(64) float query[kMaxHeadSize] = {};
  for (std::int64_t d = 0; d < view.head_size; ++d) query[d] = q[d];
  const std::int64_t base = view.first / kLanes * kLanes;
  score<Load>(view, query, args.scale, base, scores);
  const float denominator = exponentiate(scores, (view.last / kLanes + 1) * kLanes - base, args.softcap);
  std::int64_t d = 0;
  for (; d + 4 * kLanes <= view.head_size; d += 4 * kLanes) {
    weigh<Load, 4>(view, scores, base, denominator, d, 4 * kLanes, out);
  }
  for (; d < view.head_size; d += kLanes) weigh<Load, 1>(view, scores, base, denominator, d, view.head_size - d, out);
}

// The sequence that row `row` belongs to: the last s with indptr[s] <= row.
inline std::int64_t find_sequence(const std::int32_t* indptr, std::int64_t num_sequences, std::int64_t row) {
  std::int64_t low = 0, high = num_sequences;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (indptr[middle] <= row ? low : high) = middle;
  }
  return low;
}

void attend_row(const AttentionArgs& args, std::int64_t row, std::int64_t kv_head, float* scores) {
  const auto* q_indptr = args.q_indptr.as<const std::int32_t>();
  const KvLayer& kv = args.kv;
  const std::int64_t s = find_sequence(q_indptr, args.kv_lens.dim(0), row);
  const std::int64_t element = block_bytes(kv.dtype);
  const std::int64_t head_offset = element * kv_head * kv.block_size * kv.head_size;
  RowView view;
  view.keys = static_cast<const char*>(kv.keys) + head_offset;
  view.values = static_cast<const char*>(kv.values) + head_offset;
  view.pages = args.page_indices.as<const std::int32_t>() + args.page_indptr.as<const std::int32_t>()[s];
  view.block_bytes = element * kv.block_stride;
  view.block_size = kv.block_size;
  view.head_size = kv.head_size;
  view.last = args.kv_lens.as<const std::int32_t>()[s] - q_indptr[s + 1] + row;
  view.first = args.window > 0 && view.last + 1 > args.window ? view.last + 1 - args.window : 0;

  const std::int64_t group = args.q.dim(1) / kv.num_heads;
  for (std::int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
    const float* q = args.q.row_as<float>(row) + h * kv.head_size;
    float* out = args.out.row_as<float>(row) + h * kv.head_size;
    switch (kv.dtype) {
      case DType::kF16:
        attend_head<LoadF16>(view, args, q, out, scores);
        break;
      case DType::kBF16:
        attend_head<LoadBF16>(view, args, q, out, scores);
        break;
      default:
        attend_head<LoadF32>(view, args, q, out, scores);
        break;
    }
  }
}

}  // namespace

void attention(const AttentionArgs& args, ThreadPool& pool, void* scratch) {
  const auto* q_indptr = args.q_indptr.as<const std::int32_t>();
  const auto* kv_lens = args.kv_lens.as<const std::int32_t>();
  const std::int64_t num_sequences = args.kv_lens.dim(0);
  std::int64_t longest = 0;
  for (std::int64_t s = 0; s < num_sequences; ++s) longest = kv_lens[s] > longest ? kv_lens[s] : longest;
  const std::int64_t stride = static_cast<std::int64_t>(attention_scratch_bytes(longest, 1) / sizeof(float));
  const std::int64_t first_row = q_indptr[0], num_rows = q_indptr[num_sequences] - first_row;
  const std::int64_t kv_heads = args.kv.num_heads;
  const std::int64_t grain = 1 + kScoresPerTask / ((longest + 1) * (args.q.dim(1) / kv_heads));
  pool.parallel_for(num_rows * kv_heads, grain, [&](std::int64_t begin, std::int64_t end, int thread) {
    float* scores = static_cast<float*>(scratch) + thread * stride;
    for (std::int64_t i = begin; i < end; ++i) attend_row(args, first_row + i / kv_heads, i % kv_heads, scores);
  });
}

}  // namespace quire::cpu::QUIRE_ISA
