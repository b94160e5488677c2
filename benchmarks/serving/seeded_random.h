// SeededRandom: random numbers that are the same with every standard library, so that a seed names a load.
// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014). The distributions of
// <random> are left to each library, hence the few here.
#pragma once

#include <cmath>
#include <cstdint>

namespace quire::bench {

class SeededRandom {
 public:
  // `stream` tells apart the sequences of one seed.
  explicit SeededRandom(std::uint64_t seed, std::uint64_t stream = 0) : state_(mix(seed + kStep) ^ mix(stream + 2 * kStep)) {}

  std::uint64_t next() { return mix(state_ += kStep); }
  // Uniform on [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  // Uniform on [0, bound), to within bound / 2^64. REQUIRES: bound > 0
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  // Exponential with this mean.
  double exponential(double mean) { return -mean * std::log1p(-uniform()); }

 private:
  static constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15;
  static constexpr std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }

  std::uint64_t state_;
};

}  // namespace quire::bench
