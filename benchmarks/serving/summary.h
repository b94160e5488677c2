// The figures of a run, from its records. Pure.
//
// Percentile p of n values, as NumPy's default and most load generators have it: the sorted values stand at the positions 0 to
// n - 1, and p stands at p / 100 * (n - 1), between two of them in proportion (Hyndman and Fan, "Sample quantiles in statistical
// packages", 1996, definition 7).
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/serving/load_driver.h"

namespace quire::bench {

// REQUIRES: `sorted` ascending and not empty, 0 <= percent <= 100
double percentile(const std::vector<double>& sorted, double percent);

struct Distribution {
  std::size_t count = 0;  // 0: the others mean nothing
  double mean = 0, p50 = 0, p90 = 0, p99 = 0, max = 0;
};
Distribution distribution_of(std::vector<double> values);

// Limits in milliseconds; a request is good that keeps all that are given.
struct Limits {
  std::optional<double> ttft_ms = {};
  std::optional<double> itl_ms = {};   // of each gap of the request
  std::optional<double> tpot_ms = {};  // of its mean
  std::optional<double> e2e_ms = {};

  bool any() const { return ttft_ms || itl_ms || tpot_ms || e2e_ms; }
};

// Of the requests that were answered. Latencies in milliseconds, from when a request was due.
struct Summary {
  std::size_t num_completed = 0;
  std::size_t num_failed = 0;
  std::map<std::string, std::size_t> failures = {};  // by kind
  std::size_t num_short = 0;                         // answers of fewer tokens than asked for
  std::size_t num_uncounted = 0;                     // answers whose tokens the target did not count: their pieces were
  std::size_t num_good = 0;                          // within the limits

  double duration_s = 0;  // from the first request due to the last answer
  long long input_tokens = 0, output_tokens = 0, cached_tokens = 0;
  double requests_per_s = 0, good_requests_per_s = 0;
  double output_tokens_per_s = 0, total_tokens_per_s = 0;

  Distribution ttft_ms;      // to the first piece
  Distribution itl_ms;       // every gap between two pieces, of all requests
  Distribution tpot_ms;      // of each request: from first to last piece, by its tokens but the first
  Distribution e2e_ms;       // to the last piece
  Distribution lateness_ms;  // of the generator: from due to sent
  int max_concurrency = 0;   // requests open at once
  double mean_concurrency = 0;

  double bin_s = 0;  // output tokens per second over time, in bins of this width
  std::vector<double> tokens_per_s_over_time = {};
};

Summary summarize(const std::vector<RequestRecord>& records, const Limits& limits);

}  // namespace quire::bench
