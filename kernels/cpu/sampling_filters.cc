#include "kernels/cpu/sampling_filters.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include "kernels/cpu/kernels.h"

namespace quire::cpu {
namespace {

// How many of the best tokens stay: `count` of them, or as many as reach `share` of the whole weight.
struct Limit {
  std::int64_t count = std::numeric_limits<std::int64_t>::max();
  double share = 2.0;
};

// Tokens stay in ascending order of (key, id), here as one number below 2^63.
std::uint64_t place(std::uint32_t key, std::int64_t id) { return std::uint64_t{key} << 32 | static_cast<std::uint64_t>(id); }

struct Bin {
  std::int64_t count = 0;
  double weight = 0.0;
};

constexpr std::uint32_t kBins = 2048;

// Keys are bits of floats >= 0, which order as integers do. They are found in rounds, from the upper bits down.
struct Round {
  int shift;   // of the bits this round tells apart
  int parent;  // shift of what is known before
};
constexpr Round kRounds[] = {{20, 31}, {10, 20}, {0, 10}};

// Tokens by id, ascending: those that no filter has removed. Filters walk over these alone, and there may be few.
using Ids = std::span<std::int32_t>;

// Counts and weighs the tokens, which share the upper bits of their keys, by the bits that follow. Tokens of even and odd ids are
// summed apart, then together: neighbours often fall into one bin and would wait for each other.
template <typename KeyOf>
void fill_bins(const Distribution& d, Ids ids, const Round& round, const KeyOf& key_of, Bin (&bins)[kBins]) {
  Bin halves[2][kBins] = {};
  for (const std::int32_t i : ids) {
    const std::uint32_t bits = (key_of(i) >> round.shift) & ((1u << (round.parent - round.shift)) - 1);
    Bin& bin = halves[i & 1][bits];
    ++bin.count;
    bin.weight += static_cast<double>(d.weights[i]);
  }
  for (std::uint32_t b = 0; b < kBins; ++b) {
    bins[b] = {halves[0][b].count + halves[1][b].count, halves[0][b].weight + halves[1][b].weight};
  }
}

// Those of `ids` for which `holds(id)` is 1 and not 0, into `out`, which may be where they are. No branch: who stays is hard to
// predict.
template <typename Holds>
Ids select(Ids ids, std::int32_t* out, const Holds& holds) {
  std::size_t count = 0;
  for (const std::int32_t i : ids) {
    out[count] = i;
    count += holds(i);
  }
  return {out, count};
}

// The place of the last token that stays: where they reach the limit. Nothing is sorted, so no order of the input is bad: each
// round finds some bits of the key and passes the tokens that share them on to the next, and a last pass finds the id.
template <typename KeyOf>
std::uint64_t last_place(const Distribution& d, Ids ids, const Limit& limit, const KeyOf& key_of) {
  Bin bins[kBins];
  std::uint32_t known = 0;
  Bin better;  // the tokens before those in question
  double enough = std::numeric_limits<double>::infinity();
  for (const Round& round : kRounds) {
    fill_bins(d, ids, round, key_of, bins);
    if (round.shift == kRounds[0].shift && limit.share <= 1.0) {
      double whole = 0.0;
      for (const Bin& bin : bins) whole += bin.weight;
      enough = limit.share * whole;
    }
    std::uint32_t chosen = kBins;
    for (std::uint32_t b = 0; b < kBins; ++b) {
      if (bins[b].count == 0) continue;
      if (chosen != kBins) {  // the one before did not reach the limit
        better.count += bins[chosen].count;
        better.weight += bins[chosen].weight;
      }
      chosen = b;
      if (better.count + bins[b].count >= limit.count || better.weight + bins[b].weight >= enough) break;
    }
    known = known << (round.parent - round.shift) | chosen;
    ids = select(ids, d.scratch + d.size, [&](std::int32_t i) { return std::size_t{key_of(i) >> round.shift == known}; });
  }
  for (const std::int32_t i : ids) {
    ++better.count;
    better.weight += static_cast<double>(d.weights[i]);
    if (better.count >= limit.count || better.weight >= enough) return place(known, i);
  }
  return place(known, d.size);
}

template <typename KeyOf>
Ids keep_best(const Distribution& d, Ids ids, const Limit& limit, const KeyOf& key_of) {
  const std::uint64_t last = last_place(d, ids, limit, key_of);
  return select(ids, ids.data(), [&](std::int32_t i) {
    const std::uint64_t gone = (last - place(key_of(i), i)) >> 63;  // 0 or 1, where a comparison would become a branch
    const auto bits = std::bit_cast<std::uint32_t>(d.weights[i]);
    d.weights[i] = std::bit_cast<float>(bits & static_cast<std::uint32_t>(gone - 1));
    return 1 - gone;
  });
}

// Likelier tokens have smaller keys. 0 - x: never -0.
std::uint32_t likelihood_key(float logit) { return std::bit_cast<std::uint32_t>(0.0f - logit); }

// Distance of a token's surprise from its mean, the entropy: -log p - H = mean(x) - x.
Ids keep_typical(const Distribution& d, Ids ids, double share) {
  double whole = 0.0, weighted = 0.0;
  for (const std::int32_t i : ids) {
    whole += static_cast<double>(d.weights[i]);
    weighted += static_cast<double>(d.weights[i]) * static_cast<double>(d.logits[i]);
  }
  const double mean = weighted / whole;
  return keep_best(d, ids, {.share = share}, [&](std::int32_t i) {
    return std::bit_cast<std::uint32_t>(static_cast<float>(std::abs(static_cast<double>(d.logits[i]) - mean)));
  });
}

void keep_min_p(const Distribution& d, Ids ids, float min_p) {
  float top = 0.0f;
  for (const std::int32_t i : ids) top = std::max(top, d.weights[i]);
  const double least = static_cast<double>(min_p) * static_cast<double>(top);
  for (const std::int32_t i : ids) d.weights[i] = double{d.weights[i]} < least ? 0.0f : d.weights[i];
}

}  // namespace

bool has_filters(const SampleRow& row) { return row.top_k > 0 || row.typical_p < 1.0f || row.top_p < 1.0f || row.min_p > 0.0f; }

void apply_filters(const SampleRow& row, const Distribution& d) {
  if (!has_filters(row)) return;
  const auto by_likelihood = [&](std::int32_t i) { return likelihood_key(d.logits[i]); };
  std::iota(d.scratch, d.scratch + d.size, 0);
  Ids ids = select({d.scratch, static_cast<std::size_t>(d.size)}, d.scratch,
                   [&](std::int32_t i) { return std::size_t{d.weights[i] != 0.0f}; });
  if (row.top_k > 0 && row.top_k < d.size) ids = keep_best(d, ids, {.count = row.top_k}, by_likelihood);
  if (row.typical_p < 1.0f) ids = keep_typical(d, ids, static_cast<double>(row.typical_p));
  if (row.top_p < 1.0f) ids = keep_best(d, ids, {.share = static_cast<double>(row.top_p)}, by_likelihood);
  if (row.min_p > 0.0f) keep_min_p(d, ids, row.min_p);
}

std::int32_t draw(const Distribution& d, const double* block_sums, double uniform) {
  const std::int64_t num_blocks = (d.size + kDrawBlock - 1) / kDrawBlock;
  double whole = 0.0;
  for (std::int64_t b = 0; b < num_blocks; ++b) whole += block_sums[b];
  const double target = uniform * whole;
  double sum = 0.0;
  std::int64_t block = 0;  // the last one with weight, if rounding keeps the sum from passing the target
  double before = 0.0;     // of its weights
  for (std::int64_t b = 0; b < num_blocks; ++b) {
    if (block_sums[b] == 0.0) continue;
    block = b;
    before = sum;
    sum += block_sums[b];
    if (sum > target) break;
  }
  std::int32_t token = -1;
  sum = before;
  const std::int64_t end = std::min(d.size, (block + 1) * kDrawBlock);
  for (std::int64_t i = block * kDrawBlock; i < end; ++i) {
    if (d.weights[i] == 0.0f) continue;
    token = static_cast<std::int32_t>(i);
    sum += static_cast<double>(d.weights[i]);
    if (sum > target) break;
  }
  return token;
}

namespace {

std::int64_t num_draw_blocks(std::int64_t vocabulary) { return (vocabulary + kDrawBlock - 1) / kDrawBlock; }

// Of one thread, whole cache lines: no two threads write to the same.
std::int64_t buffer_bytes(std::int64_t vocabulary) {
  constexpr std::int64_t kLine = 64;
  const std::int64_t bytes =
      num_draw_blocks(vocabulary) * std::int64_t{sizeof(double)} + 4 * vocabulary * std::int64_t{sizeof(float)};
  return (bytes + kLine - 1) / kLine * kLine;
}

}  // namespace

std::size_t sample_scratch_bytes(std::int64_t vocabulary, int num_threads) {
  return static_cast<std::size_t>(buffer_bytes(vocabulary) * num_threads);
}

SampleBuffer::SampleBuffer(void* scratch, std::int64_t vocabulary, int thread)
    : block_sums(reinterpret_cast<double*>(static_cast<char*>(scratch) + buffer_bytes(vocabulary) * thread)),
      logits(reinterpret_cast<float*>(block_sums + num_draw_blocks(vocabulary))),
      weights(logits + vocabulary),
      ids(reinterpret_cast<std::int32_t*>(weights + vocabulary)) {}

}  // namespace quire::cpu
