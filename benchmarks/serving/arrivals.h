// When the requests of an open loop arrive: at a Poisson process's times, at equal distances, or in bursts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quire::bench {

enum class ArrivalKind {
  kPoisson,  // independent exponential gaps of mean 1 / rate
  kFixed,    // gaps of 1 / rate
  kBurst,    // groups of burst_size at once, burst_size / rate apart
};

std::string_view to_string(ArrivalKind kind);

struct ArrivalSpec {
  ArrivalKind kind = ArrivalKind::kPoisson;
  double rate = 1;  // requests per second, on average; finite and positive
  int burst_size = 8;
};

// No run is planned for longer: clocks would overflow, and nobody waits.
inline constexpr double kLongestRunS = 1e6;

// `count` times in seconds from the start of the run, not descending, none over kLongestRunS. The first is 0, but for Poisson,
// whose first gap counts too. Throws Error(kInvalidArgument) naming the field.
std::vector<double> arrival_times(const ArrivalSpec& spec, std::size_t count, std::uint64_t seed);

}  // namespace quire::bench
