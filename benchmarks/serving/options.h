// The options of serve_bench: its command line, what is checked before anything runs, and all of it as JSON for the result.
#pragma once

#include <quire/engine.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/serving/arrivals.h"
#include "benchmarks/serving/endpoint_target.h"
#include "benchmarks/serving/summary.h"
#include "benchmarks/serving/workload.h"

namespace quire::bench {

struct ServeBenchOptions {
  std::string model = {};  // in process; or
  std::string url = {};    // an endpoint
  EngineOptions engine = {};
  EndpointOptions endpoint = {};
  HttpTimeouts timeouts = {};
  std::string tokenizer = {};  // for an endpoint: the vocabulary of prompts
  int vocab_size = 32000;      // without a tokenizer

  std::vector<int> streams = {};   // a closed loop for each, or
  std::vector<double> rates = {};  // an open loop for each, or
  std::string trace = {};          // the times of a file
  ArrivalSpec arrivals = {};       // but for the rate
  ReplaySpec replay = {};
  std::string lengths = {};
  WorkloadSpec workload = {};
  std::size_t num_warmup = 2;

  Limits limits = {};
  std::size_t allowed_failures = 0;
  std::chrono::milliseconds run_timeout{3'600'000};  // from the last arrival that is planned
  std::string json = {};                             // a file that is appended to, or "-"
  std::string plot = {};                             // a folder
  bool progress = true;
};

// Options by their texts, until `finish_options`.
struct OptionTexts {
  std::string endpoint = "completions", prompts = "ids", arrivals = "poisson";
  std::string input_tokens = "512", output_tokens = "128";
  double kv_cache_mib = 0, connect_timeout_s = 5, read_timeout_s = 120, request_timeout_s = 600, run_timeout_s = 3600;
  bool stops_at_eos = false, no_prefix_cache = false, no_progress = false;
};

void add_options(CLI::App& app, ServeBenchOptions& options, OptionTexts& texts);
// Throws Error(kInvalidArgument or kUnsupported) naming the option: of a value that is none, and of an option that was given and
// could not matter.
void finish_options(const CLI::App& app, const OptionTexts& texts, ServeBenchOptions& options);

// Every parameter that can change a figure.
boost::json::object to_json(const ServeBenchOptions& options);

}  // namespace quire::bench
