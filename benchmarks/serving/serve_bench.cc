// serve_bench: how a model is served under load. Latencies, throughput and goodput of the library in this process, or of any
// OpenAI-compatible endpoint by its address; the same requests, clock and arithmetic for both. docs/benchmarks.md shows its use.
//
// Exit status: 0; 1 if a run gave no figure; 2 for a wrong command line. A run that fails prints no figure.
#include <fmt/format.h>
#include <quire/error.h>

#include <boost/json.hpp>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/command_line.h"
#include "benchmarks/report.h"
#include "benchmarks/serving/engine_target.h"
#include "benchmarks/serving/options.h"
#include "benchmarks/serving/plot.h"
#include "benchmarks/serving/progress.h"
#include "benchmarks/serving/report.h"

namespace {

using namespace quire;
using namespace quire::bench;
namespace json = boost::json;

struct LoadedTarget {
  std::unique_ptr<Target> target;
  EngineTarget* engine = nullptr;  // the same, if in process
};

LoadedTarget load_target(ServeBenchOptions& options) {
  const std::uint64_t seed = options.workload.seed;
  if (options.model.empty()) {
    const Url url = parse_url(options.url);
    EndpointOptions& endpoint = options.endpoint;
    if (endpoint.model_name.empty()) endpoint.model_name = first_model_of(url, options.timeouts, endpoint.bearer);
    PromptMaker prompts = options.tokenizer.empty() ? PromptMaker(options.vocab_size, seed)
                                                    : PromptMaker(load_tokenizer(options.tokenizer), seed, endpoint.sends_text);
    return {std::make_unique<EndpointTarget>(url, options.timeouts, endpoint, std::move(prompts))};
  }
  Engine engine(options.model, options.engine);
  options.engine = engine.options();
  PromptMaker prompts(engine.tokenizer(), seed, options.endpoint.sends_text);
  auto target =
      std::make_unique<EngineTarget>(std::move(engine),
                                     EngineTargetOptions{.temperature = static_cast<float>(options.endpoint.temperature),
                                                         .ignore_eos = options.endpoint.ignore_eos,
                                                         .timeout = options.timeouts.total,
                                                         .sends_text = options.endpoint.sends_text},
                                     std::move(prompts));
  EngineTarget* const in_process = target.get();
  return {std::move(target), in_process};
}

// The loads of a run of the program, each with its requests.
struct PlannedLoad {
  LoadName name;
  int num_streams = 0;
  std::vector<PlannedRequest> requests;
};

std::vector<PlannedLoad> plan_loads(const ServeBenchOptions& options) {
  std::vector<PlannedLoad> loads;
  WorkloadSpec spec = options.workload;
  const Trace lengths = options.lengths.empty() ? Trace() : read_trace(options.lengths);
  for (const int streams : options.streams) {
    loads.push_back({{"closed", static_cast<double>(streams)}, streams, draw_workload(spec, lengths, {})});
    ++spec.run;
  }
  for (const double rate : options.rates) {
    ArrivalSpec arrivals = options.arrivals;
    arrivals.rate = rate;
    loads.push_back({{std::string(to_string(arrivals.kind)), rate},
                     0,
                     draw_workload(spec, lengths, arrival_times(arrivals, spec.num_requests, spec.seed))});
    ++spec.run;
  }
  if (options.trace.empty()) return loads;
  const Trace trace = read_trace(options.trace);
  if (trace.format == "lengths") throw Error(ErrorCode::kInvalidFile, options.trace + " has no times: give it as --lengths");
  if (trace.num_skipped > 0) fmt::print(stderr, "{}: {} rows without tokens left out\n", options.trace, trace.num_skipped);
  std::vector<PlannedRequest> requests = replay_workload(spec, options.replay, trace, options.trace);
  const double span_s = requests.back().due_s;
  const double rate = span_s > 0 ? static_cast<double>(requests.size() - 1) / span_s : 0;
  loads.push_back({{"trace", rate}, 0, std::move(requests)});
  return loads;
}

RunRecord run(const std::vector<PlannedRequest>& requests, int num_streams, Target& target, const ServeBenchOptions& options,
              const std::string& name) {
  RunRecord record;
  {
    ProgressBar bar(options.progress);
    record = run_load(requests, target,
                      {.num_streams = num_streams,
                       .allowed_failures = options.allowed_failures,
                       .timeout = options.run_timeout,
                       .on_progress = [&](const LoadProgress& progress) { bar.show(progress); }});
  }
  if (record.timed_out) {
    const double limit_s = std::chrono::duration<double>(options.run_timeout).count();
    throw Error(ErrorCode::kUnavailable,
                fmt::format("{}: no figures, since it was not over {:g} s (--run-timeout-s) after the last arrival: {} of {} "
                            "requests were sent",
                            name, limit_s, record.requests.size(), requests.size()));
  }
  std::size_t num_failed = 0;
  for (const RequestRecord& request : record.requests)
    if (request.failure) ++num_failed;
  if (record.given_up || num_failed == record.requests.size())
    throw Error(ErrorCode::kUnavailable, fmt::format("{}: no figures, since {}", name, describe_failures(record.requests)));
  if (num_failed > 0) fmt::print(stderr, "serve_bench: {}\n", describe_failures(record.requests));
  return record;
}

// Bytes of a file, or of all files in a folder; 0 if there are none.
std::uint64_t model_bytes(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::is_regular_file(path, error)) return fs::file_size(path, error);
  std::uint64_t sum = 0;
  for (fs::directory_iterator it(path, error); !error && it != fs::directory_iterator(); it.increment(error))
    if (it->is_regular_file()) sum += it->file_size();
  return sum;
}

json::object result_line(const PlannedLoad& load, const Summary& summary, const LoadedTarget& target,
                         const ServeBenchOptions& options) {
  json::object line = report_header("serve");
  line["target"] = target.engine != nullptr ? "quire in process" : options.url;
  line["isa"] = target.engine != nullptr ? json::value(target.engine->stats().cpu_isa) : json::value(nullptr);
  if (target.engine != nullptr) {
    line["model"] = std::filesystem::path(options.model).filename().string();
    line["model_bytes"] = model_bytes(options.model);
  }
  line["parameters"] = to_json(options);
  for (auto& [key, value] : to_json(load.name, summary, options.limits)) line[key] = value;
  return line;
}

// Where JSON lines go; opened before the run, so that a wrong path costs no run.
class ResultFiles {
 public:
  explicit ResultFiles(const ServeBenchOptions& options) {
    if (options.json == "-") to_stdout_ = true;
    if (!options.json.empty() && !to_stdout_) open(json_, options.json, std::ios::app);
    if (options.plot.empty()) return;
    check_plotting();
    std::error_code error;
    std::filesystem::create_directories(options.plot, error);
    plot_path_ = options.plot + "/serve_bench.jsonl";
    open(plot_, plot_path_, std::ios::trunc);
  }

  void show_table(const std::string& text) const { show(to_stdout_ ? stderr : stdout, text); }

  void write(const json::object& line) {
    const std::string text = json::serialize(line) + "\n";
    if (to_stdout_) show(stdout, text);
    for (std::ofstream* file : {&json_, &plot_}) {
      if (!file->is_open()) continue;
      *file << text << std::flush;
      if (!*file) throw Error(ErrorCode::kIo, "a result could not be written: is the disk full?");
    }
  }

  void draw(const ServeBenchOptions& options) {
    if (!plot_path_.empty()) plot(plot_path_, options.plot);
  }

 private:
  static void show(std::FILE* stream, const std::string& text) {
    fmt::print(stream, "{}", text);
    if (std::fflush(stream) != 0) throw Error(ErrorCode::kIo, "a result could not be written to the standard output");
  }
  static void open(std::ofstream& file, const std::string& path, std::ios::openmode mode) {
    file.open(path, mode);
    if (!file) throw Error(ErrorCode::kIo, fmt::format("cannot write {}: {}", path, std::strerror(errno)));
  }

  bool to_stdout_ = false;
  std::ofstream json_, plot_;
  std::string plot_path_;
};

void measure(ServeBenchOptions& options) {
  const std::vector<PlannedLoad> loads = plan_loads(options);
  ResultFiles files(options);
  const LoadedTarget target = load_target(options);
  if (options.num_warmup > 0)
    run(warmup_workload(loads[0].requests, options.num_warmup), std::max(1, loads[0].num_streams), *target.target, options,
        "warm-up");
  for (const PlannedLoad& load : loads) {
    const RunRecord record = run(load.requests, load.num_streams, *target.target, options, load.name.text());
    const Summary summary = summarize(record.requests, options.limits);
    files.show_table(table(load.name, summary, options.limits));
    files.write(result_line(load, summary, target, options));
  }
  files.draw(options);
}

}  // namespace

int main(int argc, char** argv) {
  ServeBenchOptions options;
  OptionTexts texts;
  CLI::App app("Latencies, throughput and goodput of a served model under load.");
  add_options(app, options, texts);
  if (const auto status = parse_flags(app, argc, argv)) return *status;
  try {
    finish_options(app, texts, options);
  } catch (const Error& error) {
    fmt::print(stderr, "serve_bench: {}\n", error.what());
    return 2;
  }
  try {
    measure(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "serve_bench: {}\n", error.what());
    return 1;
  }
}
