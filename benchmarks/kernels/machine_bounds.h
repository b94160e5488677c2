// What the machine can do at best, measured beside the kernels so that their share of it can be told: reading memory, and
// multiplying in registers with the instructions that a set of kernels may use. A kernel reaches neither: its multiplications
// wait for loads, unpacking and sums.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/cpu/kernels.h"

namespace quire::bench {

// The kernels named; empty: the best of this machine. Throws Error(kUnsupported).
const cpu::KernelTable& kernels_named(const std::string& isa);

struct MachineBounds {
  // Of reading a buffer from one end to the other, all threads together: the best of several passes.
  double bytes_per_s = 0;
  // A multiplication and an addition are two operations. Of 8-bit integers: vpmaddubsw with 16-bit sums for "avx2", vpdpbusd for
  // names that begin with "avx512". Of F32: fma. Empty: there is no such loop for these kernels.
  std::optional<double> integer_ops_per_s, float_ops_per_s;
};
MachineBounds measure_bounds(std::string_view isa, int num_threads, std::int64_t bytes);
// Adds "read_gb_per_s", "integer_gop_per_s" and "float_gflop_per_s".
void add_bounds(boost::json::object& report, const MachineBounds& bounds);

// The longer of reading `bytes` and of computing `operations` at `peak`, as a share of `seconds`. Without a peak nothing is known
// of work that is bound by it: the share of the bandwidth is what it is.
struct Share {
  double share = 0;
  const char* bound = "";  // "bandwidth" or "peak"
};
Share share_of_bound(double bytes, double operations, double seconds, double bytes_per_s, std::optional<double> peak);

}  // namespace quire::bench
