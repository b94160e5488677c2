// Where the tokens of a row, in ascending order of (key, id), reach a count or a weight: a search over the bits of (key, id), in
// up to five rounds of at most 11, each of them one pass over the row. Nothing is sorted, so no order of the tokens is bad.
// Weights are summed as integers, so that the order of the threads does not matter. One block, all of whose threads call.
#pragma once

#include <cstdint>

#include "kernels/cuda/block_reduce.cuh"

namespace quire::cuda {

inline constexpr int kSampleThreads = 512;
inline constexpr int kSampleWarps = kSampleThreads / kWarpSize;
inline constexpr int kIdBits = 22;
inline constexpr std::int64_t kMaxVocabulary = 1 << 20;  // sums of as many weights fit into 63 bits

using Weight = unsigned long long;  // weight * 2^43: exact for weights from 2^-20 on
inline constexpr float kWeightUnit = 0x1p43f;

// The order of a token: by key, then by id.
using TokenCode = unsigned long long;
QUIRE_DEVICE TokenCode token_code(std::uint32_t key, int id) {
  return static_cast<TokenCode>(key) << kIdBits | static_cast<unsigned>(id);
}
QUIRE_DEVICE int token_of(TokenCode code) { return static_cast<int>(code & ((1u << kIdBits) - 1)); }

// Larger values have smaller keys; +0 and -0 have the same. Not for NaN.
QUIRE_DEVICE std::uint32_t descending_key(float x) {
  const std::uint32_t bits = __float_as_uint(x + 0.0f);
  return (bits & 0x80000000u) != 0 ? bits : bits ^ 0x7fffffffu;
}
QUIRE_DEVICE float value_of_key(std::uint32_t key) { return __uint_as_float((key & 0x80000000u) != 0 ? key : key ^ 0x7fffffffu); }

struct Mass {
  unsigned count;
  Weight weight;
};
QUIRE_DEVICE Mass operator+(Mass a, Mass b) { return {a.count + b.count, a.weight + b.weight}; }
QUIRE_DEVICE Mass operator-(Mass a, Mass b) { return {a.count - b.count, a.weight - b.weight}; }

// How many of the first tokens stay: so many, or as many as have this share of the whole weight.
struct Limit {
  unsigned count;
  double share;  // above 1: no limit
};
inline constexpr unsigned kNoCount = 0xffffffffu;

inline constexpr int kBins = 2048;
inline constexpr int kBinGroups = kBins / 64;
static_assert(kBinGroups == kWarpSize);

struct SelectScratch {
  Weight weights[kBins];
  unsigned counts[kBins];
  Weight group_weights[kBinGroups];
  unsigned group_counts[kBinGroups];
  int chosen;
  unsigned chosen_count;
};

// The first of 32 lanes whose masses, added to `before`, reach `count` or `enough`; `before` becomes what comes before that lane.
// If none does: the last lane with a token (-1: none), and `reached` is false.
struct Pick {
  int lane;
  bool reached;
};
QUIRE_DEVICE Pick pick_lane(Mass mine, Mass& before, unsigned count, double enough) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const Mass sum = before + Mass{warp_prefix_sum(mine.count), warp_prefix_sum(mine.weight)};
  const bool reaches = sum.count >= count || static_cast<double>(sum.weight) >= enough;
  const int first = warp_reduce(reaches ? lane : kWarpSize, kWarpSize, Least());
  const int last = warp_reduce(mine.count > 0 ? lane : -1, kWarpSize, Greatest());
  const int picked = first < kWarpSize ? first : last;
  const int source = picked < 0 ? 0 : picked;
  const Mass mass_before = sum - mine;
  const Mass at_source{__shfl_sync(kAllLanes, mass_before.count, source), __shfl_sync(kAllLanes, mass_before.weight, source)};
  if (picked >= 0) before = at_source;
  return {picked, first < kWarpSize};
}

QUIRE_DEVICE Mass bin_mass(const SelectScratch& scratch, int bin) { return {scratch.counts[bin], scratch.weights[bin]}; }

// The bits of a code that a round of the search tells apart: `width` bits from bit `shift` on; 11, 11 and 10 of the key, twice 11
// of the id.
struct RoundBits {
  int shift, width;
};
QUIRE_DEVICE RoundBits round_bits(int round) {
  if (round < 2) return {kIdBits + (round == 0 ? 21 : 10), 11};
  return round == 2 ? RoundBits{kIdBits, 10} : RoundBits{round == 3 ? 11 : 0, 11};
}

// Fills group_counts and group_weights: 64 neighbouring bins each.
QUIRE_DEVICE void sum_groups(SelectScratch& scratch) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize;
  for (int group = warp; group < kBinGroups; group += kSampleWarps) {
    const Mass mass = bin_mass(scratch, group * 64 + lane) + bin_mass(scratch, group * 64 + 32 + lane);
    const unsigned count = warp_reduce(mass.count, kWarpSize, Sum());
    const Weight weight = warp_reduce(mass.weight, kWarpSize, Sum());
    if (lane != 0) continue;
    scratch.group_counts[group] = count;
    scratch.group_weights[group] = weight;
  }
}

// The bin at which `better` and the bins up to it reach the limit, or else the last with a token. One warp. `better` becomes all
// before it.
QUIRE_DEVICE int choose_bin(const SelectScratch& scratch, Mass& better, unsigned count, double enough) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const Mass group_mass{scratch.group_counts[lane], scratch.group_weights[lane]};
  const Pick group = pick_lane(group_mass, better, count, enough);
  if (group.lane < 0) return 0;
  const Mass low = bin_mass(scratch, group.lane * 64 + lane), high = bin_mass(scratch, group.lane * 64 + 32 + lane);
  Mass before_low = better;
  Mass before_high = better + Mass{warp_reduce(low.count, kWarpSize, Sum()), warp_reduce(low.weight, kWarpSize, Sum())};
  const Pick in_low = pick_lane(low, before_low, count, enough);
  const Pick in_high = pick_lane(high, before_high, count, enough);
  const bool is_low = in_low.reached || in_high.lane < 0;
  better = is_low ? before_low : before_high;
  return group.lane * 64 + (is_low ? in_low.lane : 32 + in_high.lane);
}

// The code of the last token that stays. `key_of(id, key)` says whether the token takes part and sets its key, `weight_of(id)` is
// only asked about those, and only with a limit on the share.
template <typename KeyOf, typename WeightOf>
QUIRE_DEVICE TokenCode select_last(int size, const Limit& limit, SelectScratch& scratch, const KeyOf& key_of,
                                   const WeightOf& weight_of) {
  const bool by_share = limit.share <= 1.0;
  TokenCode known = 0;
  Mass better{0, 0};         // warp 0: the tokens before those in question
  double enough = INFINITY;  // warp 0
  for (int round = 0; round < 5; ++round) {
    const auto [shift, width] = round_bits(round);
    for (int b = static_cast<int>(threadIdx.x); b < kBins; b += kSampleThreads) {
      scratch.counts[b] = 0;
      scratch.weights[b] = 0;
    }
    __syncthreads();
    for (int id = static_cast<int>(threadIdx.x); id < size; id += kSampleThreads) {
      std::uint32_t key = 0;
      if (!key_of(id, key)) continue;
      const TokenCode code = token_code(key, id);
      if (code >> (shift + width) != known) continue;
      const int bin = static_cast<int>(code >> shift & ((1u << width) - 1));
      atomicAdd(&scratch.counts[bin], 1u);
      if (by_share) atomicAdd(&scratch.weights[bin], static_cast<Weight>(weight_of(id) * kWeightUnit));
    }
    __syncthreads();
    sum_groups(scratch);
    __syncthreads();
    if (threadIdx.x < kWarpSize) {
      if (round == 0 && by_share)
        enough = limit.share * static_cast<double>(warp_reduce(scratch.group_weights[threadIdx.x], kWarpSize, Sum()));
      const int bin = choose_bin(scratch, better, limit.count, enough);
      if (threadIdx.x == 0) {
        scratch.chosen = bin;
        scratch.chosen_count = scratch.counts[bin];
      }
    }
    __syncthreads();
    known = known << width | static_cast<unsigned>(scratch.chosen);
    // No barrier here: `chosen` is written again only behind three others, of the next round or of the next search.
    if (scratch.chosen_count <= 1) return known << shift | ((TokenCode{1} << shift) - 1);
  }
  return known;
}

}  // namespace quire::cuda
