// The instruction set of the machine: every operation a backend must offer, as an argument struct each, with shapes,
// requirements and formula. Kernels know arrays; they never hear of requests or sequences beyond the CSR arrays below.
//
// Letters: T tokens in the step, S sequences in the step, R rows, H hidden size, Hq and Hkv query and KV heads, D head size,
// N blocks in the pool, B block size (tokens), P page entries, V vocabulary, K and M inner and outer size of a matrix.
// Activations are F32 on the CPU backend, BF16 or F16 on CUDA. Where an op reads a block id it multiplies in 64 bits.
//
// The promise behind every op: the bits of a result row depend on that row's inputs alone, not on T, S, R, on the other rows, on
// the block size, on where blocks lie, or on the number of threads. The order of every reduction stands in docs/numerics.md
// (CPU) and docs/cuda_numerics.md.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace quire {

// out[t] = scale * table[token_ids[t]], dequantised.
struct EmbedArgs {
  TensorView table;      // [V, H], any weight type
  TensorView token_ids;  // [T] I32. REQUIRES: 0 <= id < V
  TensorView out;        // [T, H]
  float scale = 1.0f;    // Gemma: sqrt(H)
};

// out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight. Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4.
struct RmsNormArgs {
  TensorView x;       // [R, H]; may be out
  TensorView weight;  // [H] F32 (files in bf16/f16 are widened at load; Gemma's +1 is already in it)
  TensorView out;     // [R, H]
  float eps = 1e-6f;
};

// residual[r] += x[r]; out[r] = rms_norm(residual[r]). One pass over memory.
struct AddRmsNormArgs {
  TensorView residual;  // [R, H], updated
  TensorView x;         // [R, H]
  TensorView weight;    // [H] F32
  TensorView out;       // [R, H]; not residual
  float eps = 1e-6f;
};

// residual[r] += x[r].
struct AddArgs {
  TensorView residual;  // [R, H], updated
  TensorView x;         // [R, H]
};

// out_i[r] = x[r] * weight_i^T + bias_i for up to three projections of the same rows, so that rows are quantised (CPU) once.
struct Projection {
  TensorView weight;  // [M, K], any weight type: rows of the file, never transposed
  TensorView bias;    // [M] of the activations' type; data == nullptr: none
  TensorView out;     // [R, M]; outer_stride may exceed M
};
struct MatmulArgs {
  static constexpr int kMaxProjections = 3;
  TensorView x;  // [R, K]
  int num_projections = 0;
  // With quantised weights the CPU takes x as a sum of so many 8-bit terms, 1 or 2: the second holds what the first leaves, at
  // the price of the integer work once more. Ignored with float weights and on CUDA.
  int activation_terms = 1;
  Projection projections[kMaxProjections];
};

// cos_sin[t, i] = (cos, sin)(positions[t] * inv_freq[i]) * magnitude, computed in double, rounded to float once.
// Su et al. 2021, arXiv:2104.09864, eq. 34; scaling variants (linear, llama3, yarn) are in inv_freq and magnitude.
struct RopeTableArgs {
  TensorView positions;  // [T] I32
  TensorView inv_freq;   // [rot / 2] F32
  float magnitude = 1.0f;
  TensorView cos_sin;  // [T, rot / 2, 2] F32
};

enum class RopeKind : std::uint8_t {
  kHalfSplit,    // pairs (i, i + rot / 2): Hugging Face checkpoints, and GGUF of qwen and gemma
  kInterleaved,  // pairs (2i, 2i + 1): GGUF of llama
};

// In place: (a, b) -> (a cos - b sin, b cos + a sin) on the first `rot` elements of each head.
struct RopeArgs {
  TensorView x;        // [T, heads, D]
  TensorView cos_sin;  // [T, rot / 2, 2] F32
  RopeKind kind = RopeKind::kHalfSplit;
};

// One layer's keys and values in the block-major pool. Row d of token `offset` of block b and head h lies at
//   keys + b * block_stride + (h * block_size + offset) * head_size + d      (elements; values alike)
struct KvLayer {
  void* keys = nullptr;
  void* values = nullptr;
  DType dtype = DType::kF16;      // F16, BF16, F32
  std::int64_t block_stride = 0;  // elements from one block to the next
  int block_size = 0;             // B
  int num_heads = 0;              // Hkv
  int head_size = 0;              // D
};

// Writes k[t], v[t] to slots[t] = block * B + offset, rounded to the pool's type. Rows with a negative slot write nothing.
struct AppendKvArgs {
  TensorView k;      // [T, Hkv, D]
  TensorView v;      // [T, Hkv, D]
  TensorView slots;  // [T] I64. REQUIRES: distinct where not negative
  KvLayer kv;
};

// rope(q), rope(k) and append_kv of the rotated k and of v, in one pass over memory, with the same bits in the pool; k itself is
// left as it was, for nothing reads it any more. For backends that wait for memory: keys and values are read once instead of
// twice and two launches of a layer go. Others call the parts.
struct RopeAppendKvArgs {
  TensorView q;        // [T, Hq, D], rotated in place
  TensorView k;        // [T, Hkv, D]
  TensorView v;        // [T, Hkv, D]
  TensorView cos_sin;  // [T, rot / 2, 2] F32
  TensorView slots;    // [T] I64, as in AppendKvArgs
  KvLayer kv;
  RopeKind kind = RopeKind::kHalfSplit;
};

// How a backend divides a step's attention, in words of its own: the same array on the host, for the launch, and on the device,
// for the kernel. The CPU has none.
struct AttentionWork {
  const std::int32_t* on_host = nullptr;
  TensorView on_device;  // I32
};

// Causal attention of each sequence's new tokens over its pages (Vaswani et al. 2017, arXiv:1706.03762, eq. 1).
// Sequence s has rows q_indptr[s] to q_indptr[s + 1] of q, the last of its kv_lens[s] positions; row i of n stands at position
// p = kv_lens[s] - n + i and sees positions j with max(0, p - window + 1) <= j <= p. Position j lies in block
// page_indices[page_indptr[s] + j / B]. Entries of blocks that no row sees may hold anything and are never followed.
// Scores are scale * q.k, then softcap * tanh(score / softcap) if softcap > 0. Head h reads KV head h / (Hq / Hkv).
struct AttentionArgs {
  TensorView q;    // [T, Hq, D]
  TensorView out;  // [T, Hq, D]; not q
  KvLayer kv;
  TensorView q_indptr;      // [S + 1] I32, absolute rows of q
  TensorView kv_lens;       // [S] I32, the new tokens included
  TensorView page_indptr;   // [S + 1] I32, absolute entries of page_indices
  TensorView page_indices;  // [P] I32
  float scale = 1.0f;
  int window = 0;        // positions seen, its own included; 0: all
  float softcap = 0.0f;  // 0: none
  AttentionWork work;    // of these sequences
};

enum class Activation : std::uint8_t {
  kSilu,      // x * sigmoid(x)
  kGeluTanh,  // 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), Hendrycks & Gimpel 2016, arXiv:1606.08415
};

// out[r] = activation(gate[r]) * up[r]. Shazeer 2020, arXiv:2002.05202, eq. 6.
struct GatedActivationArgs {
  TensorView gate;  // [R, F]
  TensorView up;    // [R, F]
  TensorView out;   // [R, F]; may be gate
  Activation activation = Activation::kSilu;
};

// out[r] = x[rows[r]].
struct GatherRowsArgs {
  TensorView x;     // [T, H]
  TensorView rows;  // [R] I32. REQUIRES: 0 <= row < T
  TensorView out;   // [R, H]
};

// logits = cap * tanh(logits / cap), in place.
struct SoftcapArgs {
  TensorView logits;  // [R, V]
  float cap = 0.0f;   // > 0
};

// What one row is sampled with. Pointers are to host memory on the CPU backend and stay valid during the call.
struct TokenCount {
  std::int32_t token = 0;
  std::int32_t in_output = 0;  // occurrences among generated tokens; 0: in the prompt only
};
struct TokenBias {
  std::int32_t token = 0;
  float bias = 0.0f;  // finite or -infinity
};
struct SampleRow {
  float temperature = 1.0f;  // below 1e-5: greedy
  int top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float typical_p = 1.0f;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  const TokenCount* counts = nullptr;  // [num_counts] distinct tokens of prompt and output; only with a penalty
  int num_counts = 0;
  const TokenBias* biases = nullptr;  // [num_biases] distinct tokens; -infinity forbids (min_tokens uses it)
  int num_biases = 0;
  const std::uint32_t* mask = nullptr;  // [ceil(V / 32)] bit set: allowed; nullptr: all
  int num_allowed = 0;                  // only tokens below can be sampled (the tokenizer's vocabulary); 0: V
  std::uint64_t seed = 0;               // the draw is a pure function of (seed, stream, counter)
  std::uint32_t stream = 0;             // choice index
  std::uint32_t counter = 0;            // index of the token in its output
  bool draw = true;                     // false: logprobs only (prompt rows); `token` gets `target`
  std::int32_t target = -1;             // with draw == false: the token whose logprob is wanted
  bool logprob = false;                 // fill SampleResult::logprob
  int num_top = 0;                      // alternatives wanted, at most kMaxTop
};

// ok is false if no token could be drawn: every logit masked, or NaN or +infinity among them.
struct SampleResult {
  static constexpr int kMaxTop = 20;
  bool ok = false;
  std::int32_t token = -1;
  float logprob = 0.0f;                // of token, in log_softmax(logits) as they came
  std::int32_t top_tokens[kMaxTop]{};  // below num_allowed, best first, ties by lower id; -1 after the last
  float top_logprobs[kMaxTop]{};
};

// Logits to tokens, one row at a time; the order of application is that of SamplingParams. The logits are left as they were.
struct SampleArgs {
  TensorView logits;                // [R, V] F32
  const SampleRow* rows = nullptr;  // [R]
  SampleResult* results = nullptr;  // [R]
};

// Block `to` becomes a copy of block `from` (all layers of its KV group: one contiguous piece), one pair after the other.
struct BlockPair {
  std::int32_t from = 0;
  std::int32_t to = 0;
};
struct CopyBlocksArgs {
  void* pool = nullptr;  // base of the pool
  std::int64_t block_bytes = 0;
  const BlockPair* pairs = nullptr;
  int num_pairs = 0;
};

}  // namespace quire
