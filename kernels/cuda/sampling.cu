// Logits to tokens, one block per row, by the sequence of docs/numerics.md, section 10: exponentials, sums that decide and the
// draw have the bits of the CPU, so that a request samples the same tokens on either from the same logits. Two sums in double go
// another way: those of the filters are of integers (token_select.cuh), and the mean of typical sampling adds in another order;
// both differ from the CPU's in the last of 43 bits at most. A row's parameters that change logits, and its draw, work on a copy
// [R, V] in scratch; a removed token is -infinity there.
//
// 512 threads of 64 registers, 33,840 bytes of shared memory (nvcc 13.0): an SM of an H200 has registers for 2 blocks, half of
// its 2,048 threads, and shared memory for 6. Registers do not bound it: 132 SMs have a second block only where a step samples
// more than 132 rows. What does is latency, for the passes over a row come one after the other, one for the best token and up to
// six for each filter, with four bytes a thread at a time; only more blocks for a row would change that.
#include "kernels/cuda/float_dispatch.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/sample_rows.h"
#include "kernels/cuda/token_select.cuh"

namespace quire::cuda {
namespace {

constexpr float kGreedyBelow = 1e-5f;  // temperature
constexpr int kDrawBlock = 1024;       // tokens whose weights are summed in float
constexpr int kMaxDrawBlocks = static_cast<int>(kMaxVocabulary / kDrawBlock);
constexpr int kLanes = 16;  // of a float sum

struct SampleScratch {
  SelectScratch select;
  double block_sums[kMaxDrawBlocks];
  double partials[kWarpSize];
  TokenCode code_partials[kWarpSize];
  TokenCode best[SampleResult::kMaxTop];
  unsigned num_best;
};

// 2^n for an integral n in [-126, 127].
QUIRE_DEVICE float exp2_integral(float n) { return __int_as_float((static_cast<int>(n) + 127) << 23); }

// e^x for x <= 0, the sequence of docs/numerics.md, section 8: bit for bit the CPU's.
QUIRE_DEVICE float weight_of(float x) {
  x = x > -104.0f ? x : -104.0f;
  const float n = rintf(__fmul_rn(x, 0x1.715476p+0f));
  const float r = fmaf(n, -0x1.0bfbe8p-15f, fmaf(n, -0x1.62e000p-1f, x));
  float q = 0x1.6a23d0p-10f;
  q = fmaf(q, r, 0x1.123a20p-7f);
  q = fmaf(q, r, 0x1.5558f2p-5f);
  q = fmaf(q, r, 0x1.555492p-3f);
  q = fmaf(q, r, 0x1.fffffcp-2f);
  const float p = fmaf(fmaf(q, r, 1.0f), r, 1.0f);
  const float half = rintf(n * 0.5f);
  return __fmul_rn(__fmul_rn(p, exp2_integral(half)), exp2_integral(n - half));
}

// Calls f(id, x[id]) for this thread's share of [begin, end).
template <typename Function>
QUIRE_DEVICE void for_tokens(const float* x, int begin, int end, const Function& f) {
  for (int id = begin + static_cast<int>(threadIdx.x); id < end; id += kSampleThreads) f(id, load_global(x + id));
}

// ---- the best token

constexpr TokenCode kNoToken = ~TokenCode{0};
constexpr TokenCode kInvalid = 0;  // NaN or +infinity among the logits

// The largest of x[begin, end), the lowest id among equals.
QUIRE_DEVICE TokenCode find_top(const float* x, int begin, int end, SampleScratch& scratch) {
  TokenCode top = kNoToken;
  for_tokens(x, begin, end, [&](int id, float value) {
    const TokenCode code = value < INFINITY ? token_code(descending_key(value), id) : kInvalid;
    top = code < top ? code : top;
  });
  return block_reduce(top, scratch.code_partials, kNoToken, Least());
}

QUIRE_DEVICE float value_of(TokenCode code) {
  return code == kNoToken ? -INFINITY : value_of_key(static_cast<std::uint32_t>(code >> kIdBits));
}

// ---- mask, bias, penalties

// Within the finite numbers: only a mask or a bias of -infinity forbids a token, and none becomes infinitely likely.
QUIRE_DEVICE float adjusted(float before, float after) {
  constexpr float kMost = 3.402823466e38f;
  if (before == -INFINITY) return before;
  return after > kMost ? kMost : after < -kMost ? -kMost : after;
}

template <typename T>
QUIRE_DEVICE const T* array_at(const DeviceSampleRow* rows, std::int64_t at) {
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(rows) + at);
}

// x = logits under mask, bias and penalties, in this order. Entries for tokens that do not exist are passed over.
QUIRE_DEVICE void adjust(const float* logits, int size, const DeviceSampleRow* rows, const DeviceSampleRow& row, float* x) {
  const auto* mask = array_at<std::uint32_t>(rows, row.mask_at);
  const bool has_mask = row.mask_at != 0;
  for_tokens(logits, 0, size, [&](int id, float logit) {
    const bool is_allowed = !has_mask || (mask[id / 32] >> (id % 32) & 1u) != 0;
    store_global(x + id, is_allowed ? logit : -INFINITY);
  });
  __syncthreads();
  const auto* biases = array_at<TokenBias>(rows, row.biases_at);
  for (int i = static_cast<int>(threadIdx.x); i < row.num_biases; i += kSampleThreads) {
    const TokenBias bias = biases[i];
    if (bias.token < 0 || bias.token >= size) continue;
    const float logit = x[bias.token];
    x[bias.token] = bias.bias == -INFINITY ? bias.bias : adjusted(logit, logit + bias.bias);
  }
  __syncthreads();
  const auto* counts = array_at<TokenCount>(rows, row.counts_at);
  for (int i = static_cast<int>(threadIdx.x); i < row.num_counts; i += kSampleThreads) {
    const TokenCount count = counts[i];
    if (count.token < 0 || count.token >= size) continue;
    float logit = x[count.token];
    logit = adjusted(logit, logit > 0.0f ? logit / row.repetition_penalty : logit * row.repetition_penalty);
    if (count.in_output != 0) {
      const float frequency = __fmul_rn(row.frequency_penalty, static_cast<float>(count.in_output));
      logit = adjusted(logit, logit - (row.presence_penalty + frequency));
    }
    x[count.token] = logit;
  }
  __syncthreads();
}

// ---- filters; x is (logit - largest) / temperature, -infinity where removed

// Removes what comes behind `last`.
template <typename KeyOf>
QUIRE_DEVICE void keep_until(float* x, int size, TokenCode last, const KeyOf& key_of) {
  for_tokens(x, 0, size, [&](int id, float value) {
    if (token_code(key_of(value), id) > last) store_global(x + id, -INFINITY);
  });
  __syncthreads();
}

template <typename KeyOf>
QUIRE_DEVICE void keep_best(float* x, int size, const Limit& limit, SampleScratch& scratch, const KeyOf& key_of) {
  const auto key_with_weight = [&](int id, std::uint32_t& key) {
    const float value = load_global(x + id);
    key = key_of(value);
    return weight_of(value) != 0.0f;
  };
  const TokenCode last =
      select_last(size, limit, scratch.select, key_with_weight, [&](int id) { return weight_of(load_global(x + id)); });
  keep_until(x, size, last, key_of);
}

// Meister et al. 2022, arXiv:2202.00666: by the distance of a token's surprise from the entropy, |x - mean of x|.
QUIRE_DEVICE void keep_typical(float* x, int size, double share, SampleScratch& scratch) {
  double whole = 0.0, weighted = 0.0;
  for_tokens(x, 0, size, [&](int, float value) {
    const float weight = weight_of(value);
    if (weight == 0.0f) return;
    whole += static_cast<double>(weight);
    weighted += static_cast<double>(weight) * static_cast<double>(value);
  });
  whole = block_reduce(whole, scratch.partials, 0.0, Sum());
  weighted = block_reduce(weighted, scratch.partials, 0.0, Sum());
  const double mean = weighted / whole;
  keep_best(x, size, {kNoCount, share}, scratch,
            [mean](float value) { return __float_as_uint(static_cast<float>(fabs(static_cast<double>(value) - mean))); });
}

QUIRE_DEVICE void keep_min_p(float* x, int size, float min_p, SampleScratch& scratch) {
  const float top = value_of(find_top(x, 0, size, scratch));
  const double least = static_cast<double>(min_p) * static_cast<double>(weight_of(top));
  for_tokens(x, 0, size, [&](int id, float value) {
    if (static_cast<double>(weight_of(value)) < least) store_global(x + id, -INFINITY);
  });
  __syncthreads();
}

QUIRE_DEVICE void apply_filters(const DeviceSampleRow& row, float* x, int size, SampleScratch& scratch) {
  const auto by_likelihood = [](float value) { return descending_key(value); };
  if (row.top_k > 0 && row.top_k < size) keep_best(x, size, {static_cast<unsigned>(row.top_k), 2.0}, scratch, by_likelihood);
  if (row.typical_p < 1.0f) keep_typical(x, size, static_cast<double>(row.typical_p), scratch);
  if (row.top_p < 1.0f) keep_best(x, size, {kNoCount, static_cast<double>(row.top_p)}, scratch, by_likelihood);
  if (row.min_p > 0.0f) keep_min_p(x, size, row.min_p, scratch);
}

// ---- sums and the draw

// scratch.block_sums[b] = the lane sum of weight_of(x[id] - top) over the tokens of block b; half a warp each.
QUIRE_DEVICE void sum_blocks(const float* x, int size, float top, SampleScratch& scratch) {
  const int num_blocks = (size + kDrawBlock - 1) / kDrawBlock;
  const int lane = static_cast<int>(threadIdx.x) % kLanes, half = static_cast<int>(threadIdx.x) % kWarpSize / kLanes;
  for (int pair = 2 * (static_cast<int>(threadIdx.x) / kWarpSize); pair < num_blocks; pair += 2 * kSampleWarps) {
    const int begin = (pair + half) * kDrawBlock, end = begin + kDrawBlock < size ? begin + kDrawBlock : size;
    float sum = 0.0f;
    for (int id = begin + lane; id < end; id += kLanes) sum = __fadd_rn(sum, weight_of(load_global(x + id) - top));
    for (int distance = kLanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(kAllLanes, sum, distance);
    if (lane == 0 && pair + half < num_blocks) scratch.block_sums[pair + half] = static_cast<double>(sum);
  }
  __syncthreads();
}

QUIRE_DEVICE double block_sum(const SampleScratch& scratch, int block, int num_blocks) {
  return block < num_blocks ? scratch.block_sums[block] : 0.0;
}

QUIRE_DEVICE double whole_sum(const SampleScratch& scratch, int num_blocks) {
  double whole = 0.0;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  for (int base = 0; base < num_blocks; base += kWarpSize)
    whole += warp_reduce(block_sum(scratch, base + lane, num_blocks), kWarpSize, Sum());
  return whole;
}

// The block in which the running sum exceeds `target` (else the last with weight), and the sum of those before. Every warp alike.
struct DrawBlock {
  int index;
  double before;
};
QUIRE_DEVICE DrawBlock find_block(const SampleScratch& scratch, int num_blocks, double target) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  DrawBlock found{0, 0.0};
  double sum = 0.0;
  for (int base = 0; base < num_blocks; base += kWarpSize) {
    const double weight = block_sum(scratch, base + lane, num_blocks);
    const double running = sum + warp_prefix_sum(weight);
    const int first = warp_reduce(weight != 0.0 && running > target ? lane : kWarpSize, kWarpSize, Least());
    const int last = warp_reduce(weight != 0.0 ? lane : -1, kWarpSize, Greatest());
    const int picked = first < kWarpSize ? first : last;
    const double before = __shfl_sync(kAllLanes, running, picked > 0 ? picked - 1 : 0);
    if (picked >= 0) found = {base + picked, picked == 0 ? sum : before};
    if (first < kWarpSize) break;
    sum = __shfl_sync(kAllLanes, running, kWarpSize - 1);
  }
  return found;
}

// The token at which the running sum of weights exceeds uniform * whole; its weight is positive. Two tokens of the block a
// thread.
QUIRE_DEVICE int draw_token(const float* x, int size, double uniform, SampleScratch& scratch) {
  static_assert(2 * kSampleThreads == kDrawBlock);
  sum_blocks(x, size, 0.0f, scratch);
  const int num_blocks = (size + kDrawBlock - 1) / kDrawBlock;
  const double target = uniform * whole_sum(scratch, num_blocks);
  const DrawBlock block = find_block(scratch, num_blocks, target);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int id = block.index * kDrawBlock + 2 * static_cast<int>(threadIdx.x);
  const double first = id < size ? static_cast<double>(weight_of(load_global(x + id))) : 0.0;
  const double second = id + 1 < size ? static_cast<double>(weight_of(load_global(x + id + 1))) : 0.0;
  const double running = warp_prefix_sum(first + second);
  if (lane == kWarpSize - 1) scratch.partials[warp] = running;
  const double before_lane = __shfl_up_sync(kAllLanes, running, 1);
  __syncthreads();
  double sum = block.before;
  for (int w = 0; w < warp; ++w) sum += scratch.partials[w];
  if (lane > 0) sum += before_lane;
  TokenCode exceeding = kNoToken, last = 0;  // `last`: id + 1
  if (second > 0.0 && sum + first + second > target) exceeding = static_cast<TokenCode>(id + 1);
  if (first > 0.0 && sum + first > target) exceeding = static_cast<TokenCode>(id);
  if (first > 0.0) last = static_cast<TokenCode>(id + 1);
  if (second > 0.0) last = static_cast<TokenCode>(id + 2);
  exceeding = block_reduce(exceeding, scratch.code_partials, kNoToken, Least());
  last = block_reduce(last, scratch.code_partials, TokenCode{0}, Greatest());
  return static_cast<int>(exceeding != kNoToken ? exceeding : last - 1);
}

// The token of a row whose best allowed logit is `top` before the row's parameters; -1: none.
QUIRE_DEVICE int choose(const float* logits, int size, const DeviceSampleRow* rows, const DeviceSampleRow& row, TokenCode top,
                        float* x, SampleScratch& scratch) {
  const bool is_changed = row.mask_at != 0 || row.num_biases > 0 || row.num_counts > 0;
  if (is_changed) {
    adjust(logits, size, rows, row, x);
    top = find_top(x, 0, size, scratch);
  }
  const float largest = value_of(top);
  if (top == kInvalid || largest == -INFINITY) return -1;
  const float temperature = row.temperature;  // a register, though x might be where the row is
  if (temperature < kGreedyBelow) return token_of(top);
  for_tokens(is_changed ? x : logits, 0, size,
             [&](int id, float value) { store_global(x + id, (value - largest) / temperature); });
  __syncthreads();
  apply_filters(row, x, size, scratch);
  return draw_token(x, size, row.uniform, scratch);
}

// ---- logprobs

// The `count` best of logits[size], best first, ties by lower id, into scratch.best; returns how many there are.
QUIRE_DEVICE int find_alternatives(const float* logits, int size, int count, SampleScratch& scratch) {
  if (count == 0) return 0;
  const auto key_of = [&](int id, std::uint32_t& key) {
    key = descending_key(load_global(logits + id));
    return true;
  };
  const TokenCode last = select_last(size, {static_cast<unsigned>(count), 2.0}, scratch.select, key_of, [](int) { return 0.0f; });
  if (threadIdx.x == 0) scratch.num_best = 0;
  __syncthreads();
  for_tokens(logits, 0, size, [&](int id, float value) {
    const TokenCode code = token_code(descending_key(value), id);
    if (code <= last) scratch.best[atomicAdd(&scratch.num_best, 1u)] = code;
  });
  __syncthreads();
  const int found = static_cast<int>(scratch.num_best), mine = static_cast<int>(threadIdx.x);
  const TokenCode code = mine < found ? scratch.best[mine] : kNoToken;
  int place = 0;
  for (int i = 0; i < found; ++i) place += scratch.best[i] < code ? 1 : 0;
  __syncthreads();
  if (mine < found) scratch.best[place] = code;
  __syncthreads();
  return found;
}

struct LogprobScale {
  float largest;
  double log_sum;
  QUIRE_DEVICE float operator()(float logit) const {
    return static_cast<float>(static_cast<double>(logit) - static_cast<double>(largest) - log_sum);
  }
};

QUIRE_DEVICE void write_logprobs(const float* logits, int vocabulary, const DeviceSampleRow& row, float largest,
                                 SampleScratch& scratch, SampleResult& result) {
  sum_blocks(logits, vocabulary, largest, scratch);
  const LogprobScale logprob{largest, log(whole_sum(scratch, (vocabulary + kDrawBlock - 1) / kDrawBlock))};
  const int found = find_alternatives(logits, row.num_allowed, row.num_top, scratch);
  const int i = static_cast<int>(threadIdx.x);
  if (i == 0) result.logprob = logprob(logits[result.token]);
  if (i >= row.num_top) return;
  result.top_tokens[i] = i < found ? token_of(scratch.best[i]) : -1;
  if (i < found) result.top_logprobs[i] = logprob(logits[result.top_tokens[i]]);
}

// ---- the kernel

struct SampleParams {
  Rows<const float> logits;  // [R, V]
  const DeviceSampleRow* rows;
  float* scratch;         // [R, V]
  SampleResult* results;  // [R]
};

QUIRE_DEVICE void write_result(SampleResult& result, bool ok, int token) {
  const int i = static_cast<int>(threadIdx.x);
  if (i == 0) {
    result.ok = ok;
    result.token = token;
    result.logprob = 0.0f;
  }
  if (i >= SampleResult::kMaxTop) return;
  result.top_tokens[i] = 0;
  result.top_logprobs[i] = 0.0f;
}

__global__ void __launch_bounds__(kSampleThreads) sample_kernel(SampleParams p) {
  QUIRE_SHARED(scratch, SampleScratch);
  const float* logits = p.logits[blockIdx.x].data;
  const int vocabulary = p.logits.size;
  const DeviceSampleRow& row = p.rows[blockIdx.x];
  SampleResult& result = p.results[blockIdx.x];
  const TokenCode top = find_top(logits, 0, row.num_allowed, scratch);
  const TokenCode rest = find_top(logits, row.num_allowed, vocabulary, scratch);  // not sampled, but it has probability
  const float largest = fmaxf(value_of(top), value_of(rest));
  if (top == kInvalid || rest == kInvalid || largest == -INFINITY) {
    write_result(result, false, -1);
    return;
  }
  float* x = p.scratch + static_cast<std::int64_t>(blockIdx.x) * vocabulary;
  const int token = row.draw != 0 ? choose(logits, row.num_allowed, p.rows, row, top, x, scratch) : row.target;
  const bool ok = token >= 0 && token < vocabulary;
  write_result(result, ok, token);  // what a thread reads of it below it has written itself
  if (ok && (row.logprob != 0 || row.num_top > 0)) write_logprobs(logits, vocabulary, row, largest, scratch, result);
}

}  // namespace

std::size_t sample_scratch_bytes(std::int64_t rows, std::int64_t vocabulary) {
  return static_cast<std::size_t>(rows * vocabulary) * sizeof(float);
}

void sample(const DeviceSampleArgs& args, Stream stream) {
  const char* op = "sample";
  require(args.logits.rank == 2 && args.logits.dtype == DType::kF32, op, "logits", args.logits, "[R, V] F32");
  const std::int64_t rows = args.logits.dim(0), vocabulary = args.logits.dim(1);
  require(is_shaped(args.logits, DType::kF32, {rows, vocabulary}), op, "logits", args.logits, "rows that do not overlap");
  require(vocabulary > 0 && vocabulary <= kMaxVocabulary, op, "V", vocabulary, "1 to 1,048,576");
  const SampleParams params{rows_of<const float>(args.logits), static_cast<const DeviceSampleRow*>(args.rows), args.scratch,
                            args.results};
  launch(stream, sample_kernel, {.grid = dim3(grid_x(rows)), .block = dim3(kSampleThreads)}, params);
}

}  // namespace quire::cuda
