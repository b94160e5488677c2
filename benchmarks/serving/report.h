// A run's figures as a table for people and as one JSON object for programs. Pure.
#pragma once

#include <boost/json.hpp>
#include <string>

#include "benchmarks/serving/summary.h"

namespace quire::bench {

// One run's load, for the title and the plots' axes.
struct LoadName {
  std::string kind = {};  // "closed", "poisson", "fixed", "burst", "trace"
  double value = 0;       // streams; requests per second, on average; 0: all arrive at once

  std::string text() const;  // "closed loop of 8 streams", "poisson, 2 requests/s", ...
};

std::string table(const LoadName& load, const Summary& summary, const Limits& limits);

// {"load": ..., "requests": ..., "ttft_ms": {"mean", "p50", "p90", "p99", "max"}, ...}; a distribution without values is null.
boost::json::object to_json(const LoadName& load, const Summary& summary, const Limits& limits);

// Failed requests by kind, with the first message of each: "3 failed: 2 timeout (...), 1 http_503 (...)".
std::string describe_failures(const std::vector<RequestRecord>& records);

}  // namespace quire::bench
