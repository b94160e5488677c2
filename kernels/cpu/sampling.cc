// Sampling, the vector half: passes over the vocabulary. What is decided token by token stands in sampling_filters.cc.
// A row without parameters that change the order is read once; only a row that is drawn at random takes working memory.
#include <cmath>

#include "kernels/cpu/math_f32.h"
#include "kernels/cpu/philox.h"
#include "kernels/cpu/sampling_filters.h"
#include "kernels/cpu/variant.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

constexpr float kInfinity = __builtin_inff();
constexpr float kGreedyBelow = 1e-5f;  // temperature
constexpr std::int64_t kBlock = 1024;  // tokens per partial result
static_assert(kBlock == kDrawBlock);

std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

struct Top {
  float value = -kInfinity;
  std::int64_t index = -1;  // the first with this value; -1: all are -infinity
  bool valid = true;        // neither NaN nor +infinity
};

float largest_lane(F32x16 a) {
  float lanes[kLanes];
  a.store(lanes);
  float top = lanes[0];
  for (int i = 1; i < kLanes; ++i) top = lanes[i] > top ? lanes[i] : top;
  return top;
}

Top find_top(const float* x, std::int64_t size) {
  Top top;
  std::int64_t top_block = -1;
  F32x16 checks = F32x16::zero();  // stays 0 while all is well
  for (std::int64_t begin = 0; begin < size; begin += kBlock) {
    const std::int64_t end = smaller(begin + kBlock, size);
    F32x16 tops = F32x16::set1(-kInfinity);
    for (std::int64_t i = begin; i < end; i += kLanes) {
      const F32x16 values = load_part(x + i, smaller(kLanes, end - i), -kInfinity);
      tops = max(values, tops);
      checks = fma(max(F32x16::set1(-__FLT_MAX__), values), F32x16::zero(), checks);
    }
    if (const float block_top = largest_lane(tops); block_top > top.value) {
      top.value = block_top;
      top_block = begin;
    }
  }
  top.valid = reduce_add(checks) == 0.0f;
  if (top_block >= 0) {
    top.index = top_block;
    while (x[top.index] != top.value) ++top.index;
  }
  return top;
}

// The natural logarithm of the sum of e^(x - top), by blocks: sixteen float lanes within, double between.
double log_sum_exp(const float* x, std::int64_t size, float top) {
  double whole = 0.0;
  for (std::int64_t begin = 0; begin < size; begin += kBlock) {
    const std::int64_t end = smaller(begin + kBlock, size);
    F32x16 sum = F32x16::zero();
    for (std::int64_t i = begin; i < end; i += kLanes) {
      sum = sum + exp(load_part(x + i, smaller(kLanes, end - i), -kInfinity) - F32x16::set1(top));
    }
    whole += static_cast<double>(reduce_add(sum));
  }
  return std::log(whole);
}

// The `count` best of x[size], into `tokens`: best first, ties by lower id.
void find_alternatives(const float* x, std::int64_t size, int count, std::int32_t* tokens) {
  constexpr std::int64_t kStride = 256;
  if (count == 0) return;
  int found = 0;
  for (std::int64_t begin = 0; begin < size; begin += kStride) {
    const std::int64_t end = smaller(begin + kStride, size);
    if (found == count) {  // most blocks hold none that is better than the last
      F32x16 tops = F32x16::set1(-kInfinity);
      for (std::int64_t i = begin; i < end; i += kLanes) tops = max(load_part(x + i, smaller(kLanes, end - i), -kInfinity), tops);
      if (!(largest_lane(tops) > x[tokens[count - 1]])) continue;
    }
    for (std::int64_t i = begin; i < end; ++i) {
      if (found == count && !(x[i] > x[tokens[count - 1]])) continue;
      int place = found < count ? found++ : count - 1;
      for (; place > 0 && x[i] > x[tokens[place - 1]]; --place) tokens[place] = tokens[place - 1];
      tokens[place] = static_cast<std::int32_t>(i);
    }
  }
  for (; found < count; ++found) tokens[found] = -1;
}

bool changes_logits(const SampleRow& row) { return row.mask != nullptr || row.num_biases > 0 || row.num_counts > 0; }

// What an adjustment made of a logit, held within the finite numbers: only a mask or a bias of -infinity forbids a token, and
// none becomes infinitely likely.
float adjusted(float before, float after) {
  if (before == -kInfinity) return before;
  return after > __FLT_MAX__ ? __FLT_MAX__ : after < -__FLT_MAX__ ? -__FLT_MAX__ : after;
}

// out = logits under mask, bias and penalties, in this order. Entries for tokens that do not exist are passed over.
void adjust(const float* logits, std::int64_t size, const SampleRow& row, float* out) {
  for (std::int64_t i = 0; i < size; ++i) {
    const bool allowed = row.mask == nullptr || (row.mask[i / 32] >> (i % 32) & 1u) != 0;
    out[i] = allowed ? logits[i] : -kInfinity;
  }
  for (int i = 0; i < row.num_biases; ++i) {
    const TokenBias& bias = row.biases[i];
    if (bias.token < 0 || bias.token >= size) continue;
    float& logit = out[bias.token];
    logit = bias.bias == -kInfinity ? bias.bias : adjusted(logit, logit + bias.bias);
  }
  for (int i = 0; i < row.num_counts; ++i) {
    const TokenCount& count = row.counts[i];
    if (count.token < 0 || count.token >= size) continue;
    float& logit = out[count.token];
    logit = adjusted(logit, logit > 0 ? logit / row.repetition_penalty : logit * row.repetition_penalty);
    if (count.in_output == 0) continue;
    logit = adjusted(logit, logit - (row.presence_penalty + row.frequency_penalty * static_cast<float>(count.in_output)));
  }
}

// x = (x - top) / temperature and weights = e^x.
void weigh(float* x, std::int64_t size, float top, float temperature, float* weights) {
  const F32x16 divisor = F32x16::set1(temperature);
  for (std::int64_t i = 0; i < size; i += kLanes) {
    const std::int64_t n = smaller(kLanes, size - i);
    const F32x16 scaled = (load_part(x + i, n) - F32x16::set1(top)) / divisor;
    store_part(scaled, x + i, n);
    store_part(exp(scaled), weights + i, n);
  }
}

void sum_blocks(const float* weights, std::int64_t size, double* sums) {
  for (std::int64_t begin = 0; begin < size; begin += kBlock) {
    const std::int64_t end = smaller(begin + kBlock, size);
    F32x16 sum = F32x16::zero();
    for (std::int64_t i = begin; i < end; i += kLanes) sum = sum + load_part(weights + i, smaller(kLanes, end - i));
    sums[begin / kBlock] = static_cast<double>(reduce_add(sum));
  }
}

// The token of a row whose best allowed logit is `top` before the row's parameters; -1: none.
std::int32_t choose(const float* logits, std::int64_t size, const SampleRow& row, Top top, const SampleBuffer& buffer) {
  const bool greedy = row.temperature < kGreedyBelow;
  const bool changes = changes_logits(row);
  if (!greedy || changes) {
    adjust(logits, size, row, buffer.logits);
    if (changes) top = find_top(buffer.logits, size);
  }
  if (!top.valid || top.index < 0) return -1;
  if (greedy) return static_cast<std::int32_t>(top.index);
  weigh(buffer.logits, size, top.value, row.temperature, buffer.weights);
  const Distribution distribution{buffer.logits, buffer.weights, size, buffer.ids};
  apply_filters(row, distribution);
  sum_blocks(buffer.weights, size, buffer.block_sums);
  return draw(distribution, buffer.block_sums, uniform(row.seed, row.stream, row.counter));
}

SampleResult sample_row(const float* logits, std::int64_t vocabulary, const SampleRow& row, const SampleBuffer& buffer) {
  SampleResult result;
  const std::int64_t allowed = row.num_allowed > 0 ? smaller(row.num_allowed, vocabulary) : vocabulary;
  const Top top = find_top(logits, allowed);
  const Top rest = find_top(logits + allowed, vocabulary - allowed);  // cannot be sampled, but has probability
  const float largest = rest.value > top.value ? rest.value : top.value;
  if (!top.valid || !rest.valid || largest == -kInfinity) return result;
  result.token = row.draw ? choose(logits, allowed, row, top, buffer) : row.target;
  result.ok = result.token >= 0 && result.token < vocabulary;
  if (!result.ok || !(row.logprob || row.num_top > 0)) return result;

  const double log_sum = log_sum_exp(logits, vocabulary, largest);
  const auto logprob = [&](std::int32_t token) {
    return static_cast<float>(static_cast<double>(logits[token]) - static_cast<double>(largest) - log_sum);
  };
  result.logprob = logprob(result.token);
  find_alternatives(logits, allowed, row.num_top, result.top_tokens);
  for (int i = 0; i < row.num_top && result.top_tokens[i] >= 0; ++i) result.top_logprobs[i] = logprob(result.top_tokens[i]);
  return result;
}

}  // namespace

void sample(const SampleArgs& args, ThreadPool& pool, void* scratch) {
  const std::int64_t num_rows = args.logits.dim(0);
  pool.parallel_for(num_rows, num_rows / (std::int64_t{4} * pool.num_threads()),
                    [&](std::int64_t begin, std::int64_t end, int thread) {
                      const SampleBuffer buffer(scratch, args.logits.dim(1), thread);
                      for (std::int64_t r = begin; r < end; ++r) {
                        args.results[r] = sample_row(args.logits.row_as<float>(r), args.logits.dim(1), args.rows[r], buffer);
                      }
                    });
}

}  // namespace quire::cpu::QUIRE_ISA
