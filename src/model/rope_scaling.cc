#include "model/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/check.h"

namespace quire {
namespace {

// Llama 3: long waves are slowed down by the factor, short ones kept, those between blended.
double llama3_frequency(double frequency, const RopeScaling& s) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  if (wavelength < s.original_context / s.high_freq_factor) return frequency;
  if (wavelength > s.original_context / s.low_freq_factor) return frequency / s.factor;
  const double blend = (s.original_context / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1.0 - blend) * frequency / s.factor + blend * frequency;
}

// Where yarn's ramp begins and ends, in pair indices: arXiv:2309.00071, section 3.2.
struct Ramp {
  double low, high;
  double at(double pair) const { return std::clamp((pair - low) / (high - low), 0.0, 1.0); }
};

Ramp yarn_ramp(int rotary_dims, double base, const RopeScaling& s) {
  const auto pair_turning = [&](double turns) {  // the pair that makes `turns` full turns over the original context
    return rotary_dims * std::log(s.original_context / (turns * 2.0 * std::numbers::pi)) / (2.0 * std::log(base));
  };
  Ramp ramp{pair_turning(s.beta_fast), pair_turning(s.beta_slow)};
  if (s.truncate) ramp = {std::floor(ramp.low), std::ceil(ramp.high)};
  ramp = {std::max(ramp.low, 0.0), std::min(ramp.high, rotary_dims - 1.0)};
  if (ramp.low == ramp.high) ramp.high += 0.001;
  return ramp;
}

}  // namespace

double yarn_magnitude(double factor, double mscale) { return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

RopeConfig make_rope(int rotary_dims, double base, const RopeScaling& scaling, RopeKind kind) {
  RopeConfig rope;
  rope.kind = kind;
  rope.inv_freq.resize(static_cast<std::size_t>(rotary_dims / 2));
  const bool yarn = scaling.method == RopeScaling::Method::kYarn;
  if (yarn) rope.magnitude = static_cast<float>(scaling.magnitude);
  const Ramp ramp = yarn ? yarn_ramp(rotary_dims, base, scaling) : Ramp{0.0, 1.0};
  for (std::size_t i = 0; i < rope.inv_freq.size(); ++i) {
    const auto pair = static_cast<double>(i);
    double frequency = std::pow(base, -2.0 * pair / rotary_dims);  // arXiv:2104.09864, section 3.2.2
    switch (scaling.method) {
      case RopeScaling::Method::kNone:
        break;
      case RopeScaling::Method::kLinear:
        frequency /= scaling.factor;
        break;
      case RopeScaling::Method::kLlama3:
        frequency = llama3_frequency(frequency, scaling);
        break;
      case RopeScaling::Method::kYarn:
        frequency = frequency / scaling.factor * ramp.at(pair) + frequency * (1.0 - ramp.at(pair));
        break;
    }
    rope.inv_freq[i] = static_cast<float>(frequency);
  }
  return rope;
}

void check_rope_scaling(const RopeScaling& s, const std::string& file) {
  const auto check = [&file](double value, const char* name) {
    if (!(std::isfinite(value) && value > 0.0)) fail(ErrorCode::kInvalidFile, "{}: RoPE scaling {} is {}", file, name, value);
  };
  if (s.method == RopeScaling::Method::kNone) return;
  check(s.factor, "factor");
  if (s.method == RopeScaling::Method::kLinear) return;
  check(s.original_context, "original context");
  if (s.method == RopeScaling::Method::kLlama3) {
    check(s.low_freq_factor, "low_freq_factor");
    check(s.high_freq_factor, "high_freq_factor");
    if (s.high_freq_factor <= s.low_freq_factor) {
      fail(ErrorCode::kInvalidFile, "{}: RoPE scaling high_freq_factor {} is not above low_freq_factor {}", file,
           s.high_freq_factor, s.low_freq_factor);
    }
    return;
  }
  check(s.beta_fast, "beta_fast");
  check(s.beta_slow, "beta_slow");
  if (s.beta_fast < s.beta_slow) {
    fail(ErrorCode::kInvalidFile, "{}: RoPE scaling beta_fast {} is below beta_slow {}", file, s.beta_fast, s.beta_slow);
  }
  check(s.magnitude, "attention factor");
}

}  // namespace quire
