// Each case builds its inputs from a seed, runs one op of a table, and returns the bytes of the results. Inputs are finite: which
// NaN an operation gives is not part of the promise (docs/numerics.md).
#include "kernels/cpu/self_check.h"

#include <array>
#include <cstddef>
#include <new>
#include <vector>

#include "core/log.h"
#include "kernels/cpu/activation_block.h"

namespace quire::cpu {
namespace {

using Bytes = std::vector<std::byte>;

// splitmix64: Steele, Lea & Flood 2014, doi:10.1145/2660193.2660195.
class Random {
 public:
  std::uint64_t bits() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  float uniform() { return static_cast<float>(bits() >> 40) * 0x1p-23f - 1.0f; }  // [-1, 1)
  std::vector<float> floats(std::size_t count, float range = 1.0f) {
    std::vector<float> values(count);
    for (float& v : values) v = range * uniform();
    return values;
  }

 private:
  std::uint64_t state_ = 1;
};

Bytes bytes_of(const void* data, std::size_t size) {
  const auto* first = static_cast<const std::byte*>(data);
  return {first, first + size};
}
template <typename T>
Bytes bytes_of(const std::vector<T>& values) {
  return bytes_of(values.data(), values.size() * sizeof(T));
}

void append(Bytes& bytes, const Bytes& more) { bytes.insert(bytes.end(), more.begin(), more.end()); }

constexpr std::array kWeightTypes{DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
                                  DType::kQ5_1, DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

// Random weights with finite scales: the floats in every format get a magnitude below 2.
Bytes weights(Random& random, DType type, std::int64_t elements) {
  Bytes bytes(static_cast<std::size_t>(row_bytes(type, elements)));
  for (std::byte& b : bytes) b = static_cast<std::byte>(random.bits() >> 56);
  const auto make_finite = [&](std::size_t high_byte) { bytes[high_byte] &= std::byte{0xbf}; };
  const std::size_t block = static_cast<std::size_t>(block_bytes(type));
  for (std::size_t at = 0; at < bytes.size(); at += block) {
    if (type == DType::kQ6_K) {
      make_finite(at + 209);
    } else {
      make_finite(at + (type == DType::kF32 ? 3 : 1));
      if (type == DType::kQ4_1 || type == DType::kQ5_1 || type == DType::kQ4_K || type == DType::kQ5_K) make_finite(at + 3);
    }
  }
  return bytes;
}

class AlignedBytes {
 public:
  explicit AlignedBytes(std::size_t size) : data_(::operator new(size + 1, kAlignment)) {}
  ~AlignedBytes() { ::operator delete(data_, kAlignment); }
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;
  void* data() const { return data_; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  void* data_;
};

// Quantised weights as panels, as the backend keeps them.
TensorView as_panels(const TensorView& rows, void* to, ThreadPool& pool) {
  pack_panels(rows, to, pool);
  TensorView panels = rows;
  panels.data = to;
  panels.layout = Layout::kPanels;
  return panels;
}

Bytes check_embed(const KernelTable& table, ThreadPool& pool) {
  Random random;
  Bytes results;
  for (const DType type : kWeightTypes) {
    Bytes weight = weights(random, type, 3 * 256);
    const AlignedBytes packed(static_cast<std::size_t>(packed_bytes(type, 3, 256)));
    const TensorView in_rows(weight.data(), type, {3, 256});
    std::vector<std::int32_t> ids{2, 0};
    std::vector<float> out(2 * 256);
    for (const bool panels : {false, true}) {
      if (panels && !is_quantized(type)) continue;
      table.embed({panels ? as_panels(in_rows, packed.data(), pool) : in_rows, TensorView(ids.data(), DType::kI32, {2}),
                   TensorView(out.data(), DType::kF32, {2, 256}), 1.7f},
                  pool);
      append(results, bytes_of(out));
    }
  }
  return results;
}

struct Product {
  std::int64_t rows, inner;
  int terms;
};
// Every number of rows of activations that a kernel takes together (1, 2, 4, 8), many rows, rows longer than what is unpacked at
// once, and two terms.
constexpr std::array kProducts{Product{1, 256, 1}, Product{2, 256, 1},  Product{3, 256, 1}, Product{5, 256, 1},
                               Product{6, 256, 2}, Product{21, 256, 1}, Product{9, 1024, 1}};

// Nineteen rows of weights: a group of panels and a rest.
Bytes check_matmul(const KernelTable& table, ThreadPool& pool) {
  constexpr std::int64_t kOuter = 19;
  Random random;
  Bytes results;
  for (const DType type : kWeightTypes) {
    for (const auto& [rows, inner, terms] : kProducts) {
      std::vector<float> x = random.floats(static_cast<std::size_t>(rows * inner), 3.0f);
      std::vector<float> bias = random.floats(kOuter);
      std::vector<float> out(static_cast<std::size_t>(rows * kOuter));
      Bytes weight = weights(random, type, kOuter * inner);
      const AlignedBytes scratch(matmul_scratch_bytes(rows, inner, terms));
      const AlignedBytes packed(static_cast<std::size_t>(packed_bytes(type, kOuter, inner)));
      const TensorView in_rows(weight.data(), type, {kOuter, inner});
      MatmulArgs args;
      args.x = TensorView(x.data(), DType::kF32, {rows, inner});
      args.num_projections = 1;
      args.activation_terms = terms;
      args.projections[0] = {is_quantized(type) ? as_panels(in_rows, packed.data(), pool) : in_rows,
                             TensorView(bias.data(), DType::kF32, {kOuter}), TensorView(out.data(), DType::kF32, {rows, kOuter})};
      table.matmul(args, pool, scratch.data());
      append(results, bytes_of(out));
    }
  }
  return results;
}

constexpr std::int64_t kWidth = 72;  // of rows in the elementwise ops: no multiple of 16

Bytes check_rms_norm(const KernelTable& table, ThreadPool& pool) {
  Random random;
  std::vector<float> x = random.floats(2 * kWidth), weight = random.floats(kWidth), out(2 * kWidth);
  table.rms_norm({TensorView(x.data(), DType::kF32, {2, kWidth}), TensorView(weight.data(), DType::kF32, {kWidth}),
                  TensorView(out.data(), DType::kF32, {2, kWidth})},
                 pool);
  return bytes_of(out);
}

Bytes check_add_rms_norm(const KernelTable& table, ThreadPool& pool) {
  Random random;
  std::vector<float> residual = random.floats(2 * kWidth), x = random.floats(2 * kWidth), weight = random.floats(kWidth);
  std::vector<float> out(2 * kWidth);
  table.add_rms_norm({TensorView(residual.data(), DType::kF32, {2, kWidth}), TensorView(x.data(), DType::kF32, {2, kWidth}),
                      TensorView(weight.data(), DType::kF32, {kWidth}), TensorView(out.data(), DType::kF32, {2, kWidth})},
                     pool);
  Bytes results = bytes_of(out);
  append(results, bytes_of(residual));
  return results;
}

Bytes check_add(const KernelTable& table, ThreadPool& pool) {
  Random random;
  std::vector<float> residual = random.floats(2 * kWidth), x = random.floats(2 * kWidth);
  table.add({TensorView(residual.data(), DType::kF32, {2, kWidth}), TensorView(x.data(), DType::kF32, {2, kWidth})}, pool);
  return bytes_of(residual);
}

Bytes check_rope(const KernelTable& table, ThreadPool& pool) {
  Random random;
  Bytes results;
  for (const RopeKind kind : {RopeKind::kHalfSplit, RopeKind::kInterleaved}) {
    std::vector<float> x = random.floats(2 * 3 * 40), cos_sin = random.floats(2 * 16 * 2);
    table.rope({TensorView(x.data(), DType::kF32, {2, 3, 40}), TensorView(cos_sin.data(), DType::kF32, {2, 16, 2}), kind}, pool);
    append(results, bytes_of(x));
  }
  return results;
}

// Heads that fill vectors, as those of models do, and heads that do not: kernels read the former as they are stored.
constexpr std::array kHeadSizes{48, 40};

// A pool of five blocks of four tokens with two heads, in one of the cache's types.
struct SmallCache {
  SmallCache(DType type, int head_size)
      : elements(kTokens * 2 * head_size), bytes(static_cast<std::size_t>(row_bytes(type, 2 * elements))) {
    layer.keys = bytes.data();
    layer.values = bytes.data() + row_bytes(type, elements);
    layer.dtype = type;
    layer.block_stride = std::int64_t{2} * 4 * head_size;
    layer.block_size = 4;
    layer.num_heads = 2;
    layer.head_size = head_size;
  }
  void fill(const KernelTable& table, ThreadPool& pool, Random& random) const {
    const auto count = static_cast<std::size_t>(elements);
    std::vector<float> k = random.floats(count, 4.0f), v = random.floats(count, 4.0f);
    std::vector<std::int64_t> slots;
    for (std::int64_t t = 0; t < kTokens; ++t) slots.push_back((t * 7) % kTokens);
    table.append_kv({TensorView(k.data(), DType::kF32, {kTokens, 2, layer.head_size}),
                     TensorView(v.data(), DType::kF32, {kTokens, 2, layer.head_size}),
                     TensorView(slots.data(), DType::kI64, {kTokens}), layer},
                    pool);
  }
  static constexpr std::int64_t kTokens = 20;
  std::int64_t elements;  // of the keys
  Bytes bytes;
  KvLayer layer;
};

constexpr std::array kCacheTypes{DType::kF16, DType::kBF16, DType::kF32};

Bytes check_append_kv(const KernelTable& table, ThreadPool& pool) {
  Random random;
  Bytes results;
  for (const DType type : kCacheTypes) {
    const SmallCache cache(type, kHeadSizes.back());
    cache.fill(table, pool, random);
    append(results, cache.bytes);
  }
  return results;
}

// A sequence with three new tokens of eleven and one with a single token of eight.
Bytes attend(const KernelTable& table, ThreadPool& pool, const SmallCache& cache, Random& random, bool plain) {
  const std::int64_t head_size = cache.layer.head_size;
  const auto count = static_cast<std::size_t>(4 * 4 * head_size);
  std::vector<float> q = random.floats(count, 2.0f), out(count);
  std::vector<std::int32_t> q_indptr{0, 3, 4}, kv_lens{11, 8}, page_indptr{0, 3, 5}, page_indices{4, 0, 2, 1, 3};
  const AlignedBytes scratch(attention_scratch_bytes(11, pool.num_threads()));
  AttentionArgs args;
  args.q = TensorView(q.data(), DType::kF32, {4, 4, head_size});
  args.out = TensorView(out.data(), DType::kF32, {4, 4, head_size});
  args.kv = cache.layer;
  args.q_indptr = TensorView(q_indptr.data(), DType::kI32, {3});
  args.kv_lens = TensorView(kv_lens.data(), DType::kI32, {2});
  args.page_indptr = TensorView(page_indptr.data(), DType::kI32, {3});
  args.page_indices = TensorView(page_indices.data(), DType::kI32, {5});
  args.scale = 0.158f;
  args.window = plain ? 0 : 6;
  args.softcap = plain ? 0.0f : 20.0f;
  table.attention(args, pool, scratch.data());
  return bytes_of(out);
}

Bytes check_attention(const KernelTable& table, ThreadPool& pool) {
  Random random;
  Bytes results;
  for (const DType type : kCacheTypes) {
    for (const int head_size : kHeadSizes) {
      const SmallCache cache(type, head_size);
      cache.fill(table, pool, random);
      for (const bool plain : {true, false}) append(results, attend(table, pool, cache, random, plain));
    }
  }
  return results;
}

Bytes check_gated_activation(const KernelTable& table, ThreadPool& pool) {
  Random random;
  Bytes results;
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    std::vector<float> gate = random.floats(2 * kWidth, 30.0f), up = random.floats(2 * kWidth), out(2 * kWidth);
    table.gated_activation({TensorView(gate.data(), DType::kF32, {2, kWidth}), TensorView(up.data(), DType::kF32, {2, kWidth}),
                            TensorView(out.data(), DType::kF32, {2, kWidth}), activation},
                           pool);
    append(results, bytes_of(out));
  }
  return results;
}

Bytes check_softcap(const KernelTable& table, ThreadPool& pool) {
  Random random;
  std::vector<float> logits = random.floats(2 * kWidth, 100.0f);
  table.softcap({TensorView(logits.data(), DType::kF32, {2, kWidth}), 30.0f}, pool);
  return bytes_of(logits);
}

Bytes check_sample(const KernelTable& table, ThreadPool& pool) {
  constexpr std::int64_t kVocabulary = 500;
  constexpr int kRows = 3;
  Random random;
  std::vector<float> logits = random.floats(kRows * kVocabulary, 8.0f);
  const TokenCount counts[]{{3, 2}, {77, 0}};
  const TokenBias biases[]{{9, 4.0f}};
  SampleRow rows[kRows];
  SampleResult sampled[kRows];
  rows[0].temperature = 0.0f;
  rows[1].temperature = 0.7f;
  rows[1].top_k = 40;
  rows[1].top_p = 0.9f;
  rows[2].min_p = 0.01f;
  rows[2].typical_p = 0.95f;
  rows[2].repetition_penalty = 1.2f;
  rows[2].frequency_penalty = 0.3f;
  rows[2].counts = counts;
  rows[2].num_counts = 2;
  rows[2].biases = biases;
  rows[2].num_biases = 1;
  for (SampleRow& row : rows) {
    row.seed = random.bits();
    row.logprob = true;
    row.num_top = 5;
  }
  const AlignedBytes scratch(sample_scratch_bytes(kVocabulary, pool.num_threads()));
  table.sample({TensorView(logits.data(), DType::kF32, {kRows, kVocabulary}), rows, sampled}, pool, scratch.data());
  Bytes results;
  for (const SampleResult& result : sampled) {
    append(results, bytes_of(&result.ok, sizeof result.ok));
    append(results, bytes_of(&result.token, sizeof result.token));
    append(results, bytes_of(&result.logprob, sizeof result.logprob));
    append(results, bytes_of(result.top_tokens, sizeof result.top_tokens));
    append(results, bytes_of(result.top_logprobs, sizeof result.top_logprobs));
  }
  return results;
}

struct Case {
  std::string_view op;
  Bytes (*run)(const KernelTable&, ThreadPool&);
};

constexpr std::array kCases{
    Case{"embed", check_embed},
    Case{"rms_norm", check_rms_norm},
    Case{"add_rms_norm", check_add_rms_norm},
    Case{"add", check_add},
    Case{"matmul", check_matmul},
    Case{"rope", check_rope},
    Case{"append_kv", check_append_kv},
    Case{"attention", check_attention},
    Case{"gated_activation", check_gated_activation},
    Case{"softcap", check_softcap},
    Case{"sample", check_sample},
};

}  // namespace

std::string_view first_difference(const KernelTable& a, const KernelTable& b) {
  ThreadPool pool(1);
  for (const Case& c : kCases) {
    if (c.run(a, pool) != c.run(b, pool)) return c.op;
  }
  return {};
}

const KernelTable& checked_kernels(const KernelTable& candidate, const KernelTable& reference) {
  const std::string_view op = first_difference(candidate, reference);
  if (op.empty()) return candidate;
  logger().warn("the {} CPU kernel for {} differs from the {} one on this machine; the {} kernels are not used. Please report it",
                candidate.isa, op, reference.isa, candidate.isa);
  return reference;
}

}  // namespace quire::cpu
