#include "benchmarks/serving/arrivals.h"

#include <fmt/format.h>
#include <quire/error.h>

#include <cmath>

#include "benchmarks/serving/seeded_random.h"

namespace quire::bench {

std::string_view to_string(ArrivalKind kind) {
  switch (kind) {
    case ArrivalKind::kPoisson:
      return "poisson";
    case ArrivalKind::kFixed:
      return "fixed";
    case ArrivalKind::kBurst:
      return "burst";
  }
  return "?";
}

std::vector<double> arrival_times(const ArrivalSpec& spec, std::size_t count, std::uint64_t seed) {
  if (!std::isfinite(spec.rate) || spec.rate <= 0)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("rate is {}: it must be a positive number of requests a second", spec.rate));
  if (spec.burst_size < 1)
    throw Error(ErrorCode::kInvalidArgument, fmt::format("burst size is {}: it must be at least 1", spec.burst_size));
  SeededRandom random(seed, 1);
  std::vector<double> times(count);
  double poisson = 0;
  for (std::size_t i = 0; i < count; ++i) {
    switch (spec.kind) {
      case ArrivalKind::kPoisson:
        times[i] = poisson += random.exponential(1 / spec.rate);
        break;
      case ArrivalKind::kFixed:
        times[i] = static_cast<double>(i) / spec.rate;
        break;
      case ArrivalKind::kBurst:
        const auto size = static_cast<std::size_t>(spec.burst_size);
        times[i] = static_cast<double>(i / size * size) / spec.rate;
        break;
    }
  }
  if (count > 0 && !(times.back() <= kLongestRunS))
    throw Error(ErrorCode::kInvalidArgument, fmt::format("rate is {}: {} requests would take {:.3g} s, over {:g}", spec.rate,
                                                         count, times.back(), kLongestRunS));
  return times;
}

}  // namespace quire::bench
