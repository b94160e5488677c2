#include "benchmarks/serving/options.h"

#include <fmt/format.h>
#include <quire/error.h>

#include <cmath>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "benchmarks/command_line.h"
#include "examples/command_line.h"

namespace quire::bench {
namespace {

namespace json = boost::json;

constexpr std::size_t kMostRequests = 10'000'000;  // of a run: they are planned before it, in memory

template <typename... Args>
[[noreturn]] void reject(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...));
}

void add_target_options(CLI::App& app, ServeBenchOptions& options, OptionTexts& texts) {
  const std::string engine = "In process", server = "Endpoint";
  app.add_option("--model", options.model, "GGUF file or folder with safetensors, run in this process")->group(engine);
  add_device(app, options.engine.device)->group(engine);
  app.add_option("--threads", options.engine.num_threads, "CPU threads; 0: all cores")
      ->group(engine)
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--max-batched-tokens", options.engine.max_batched_tokens, "tokens of a step")
      ->group(engine)
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--max-step-ms", options.engine.max_step_ms, "limit of a step beside running streams; 0: none")
      ->group(engine)
      ->check(CLI::Range(0, 3'600'000))
      ->capture_default_str();
  app.add_option("--max-running", options.engine.max_running, "sequences that share a step")
      ->group(engine)
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--block-size", options.engine.block_size, "tokens of a KV block")
      ->group(engine)
      ->check(a_block_size())
      ->capture_default_str();
  app.add_option("--max-context", options.engine.max_context, "0: the model's own")
      ->group(engine)
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  app.add_option("--kv-cache-mib", texts.kv_cache_mib, "memory for KV; 0: the engine's choice")
      ->group(engine)
      ->capture_default_str();
  app.add_flag("--no-prefix-cache", texts.no_prefix_cache, "reuse no prefixes")->group(engine);
  app.add_option("--url", options.url, "OpenAI-compatible server, as http://127.0.0.1:8080/v1")->group(server);
  app.add_option("--endpoint", texts.endpoint, "completions or chat")->group(server)->capture_default_str();
  app.add_option("--model-name", options.endpoint.model_name, "field 'model'; else the first that the server lists")
      ->group(server);
  app.add_option("--tokenizer", options.tokenizer, "model whose tokens make the prompts; needed for texts")->group(server);
  app.add_option("--vocab-size", options.vocab_size, "without a tokenizer: ids from 256 up to it")
      ->group(server)
      ->capture_default_str();
  app.add_option("--connect-timeout-s", texts.connect_timeout_s, "")->group(server)->capture_default_str();
  app.add_option("--read-timeout-s", texts.read_timeout_s, "without a byte from the server")
      ->group(server)
      ->capture_default_str();
}

void add_load_options(CLI::App& app, ServeBenchOptions& options, OptionTexts& texts) {
  const std::string load = "Load: one of --streams, --rate, --trace";
  add_list(app, "--streams", options.streams, "closed loop: so many open at any time; a run each")->group(load);
  add_list(app, "--rate", options.rates, "open loop: requests per second; a run each")->group(load);
  app.add_option("--arrivals", texts.arrivals, "with --rate: poisson, fixed or burst")->group(load)->capture_default_str();
  app.add_option("--burst-size", options.arrivals.burst_size, "requests that arrive together")
      ->group(load)
      ->capture_default_str();
  app.add_option("--trace", options.trace, "times and lengths of a file: Mooncake, Azure or BurstGPT")->group(load);
  app.add_option("--trace-first-row", options.replay.first_row, "where to begin")
      ->group(load)
      ->check(unsigned_number())
      ->capture_default_str();
  app.add_option("--time-scale", options.replay.time_scale, "multiplies the trace's times; 0.5: twice the load")
      ->group(load)
      ->capture_default_str();
  app.add_option("--length-scale", options.replay.length_scale, "multiplies the trace's lengths; at most 1")
      ->group(load)
      ->capture_default_str();
  app.add_option("--max-gap-s", options.replay.max_gap_s, "longer pauses in a trace are refused")
      ->group(load)
      ->capture_default_str();
}

void add_request_options(CLI::App& app, ServeBenchOptions& options, OptionTexts& texts) {
  const std::string requests = "Requests";
  app.add_option("--num-requests", options.workload.num_requests, "of each run; of a trace, at most")
      ->group(requests)
      ->check(unsigned_number())
      ->capture_default_str();
  app.add_option("--input-tokens", texts.input_tokens, "N, or N:M for all lengths between")
      ->group(requests)
      ->capture_default_str();
  app.add_option("--output-tokens", texts.output_tokens, "N, or N:M")->group(requests)->capture_default_str();
  app.add_option("--lengths", options.lengths, "CSV of input_tokens, output_tokens to draw from")->group(requests);
  app.add_option("--max-input-tokens", options.workload.max_input_tokens, "longer inputs of a file are cut; 0: none")
      ->group(requests)
      ->capture_default_str();
  app.add_option("--max-output-tokens", options.workload.max_output_tokens, "likewise")->group(requests)->capture_default_str();
  app.add_option("--prefix-tokens", options.workload.prefix_tokens, "more, the same for all requests")
      ->group(requests)
      ->capture_default_str();
  app.add_option("--prompts", texts.prompts, "ids, or text of as many tokens")->group(requests)->capture_default_str();
  app.add_option("--temperature", options.endpoint.temperature, "of sampling")->group(requests)->capture_default_str();
  app.add_flag("--stop-at-eos", texts.stops_at_eos, "let the model end an answer; else ignore_eos is asked for")->group(requests);
  app.add_option("--seed", options.workload.seed, "of arrivals, lengths and prompts")
      ->group(requests)
      ->check(unsigned_number())
      ->capture_default_str();
  app.add_option("--warmup", options.num_warmup, "requests before the first run that do not count")
      ->group(requests)
      ->check(unsigned_number())
      ->capture_default_str();
}

void add_result_options(CLI::App& app, ServeBenchOptions& options, OptionTexts& texts) {
  const std::string result = "Result";
  app.add_option("--slo-ttft-ms", options.limits.ttft_ms, "goodput: limit of the time to the first token")->group(result);
  app.add_option("--slo-itl-ms", options.limits.itl_ms, "of every gap between tokens")->group(result);
  app.add_option("--slo-tpot-ms", options.limits.tpot_ms, "of the mean time per token but the first")->group(result);
  app.add_option("--slo-e2e-ms", options.limits.e2e_ms, "of the whole request")->group(result);
  app.add_option("--allow-failures", options.allowed_failures, "failed requests that do not spoil a run")
      ->group(result)
      ->check(unsigned_number())
      ->capture_default_str();
  app.add_option("--request-timeout-s", texts.request_timeout_s, "a request that takes longer has failed")
      ->group(result)
      ->capture_default_str();
  app.add_option("--run-timeout-s", texts.run_timeout_s, "a run that is not over so long after its last arrival has failed")
      ->group(result)
      ->capture_default_str();
  app.add_option("--json", options.json, "append a JSON line for each run to this file; -: stdout, and the tables to stderr")
      ->group(result);
  app.add_option("--plot", options.plot, "draw into this folder (python3 with matplotlib)")->group(result);
  app.add_flag("--no-progress", texts.no_progress, "no progress bar")->group(result);
}

std::chrono::milliseconds period(double seconds, std::string_view option) {
  if (!std::isfinite(seconds) || seconds <= 0 || seconds > 1e6)
    reject("{} is {}: it must be positive, at most 1e6", option, seconds);
  return std::chrono::milliseconds(static_cast<long long>(std::ceil(seconds * 1e3)));
}

template <typename T>
T choose(std::string_view option, const std::string& text, std::initializer_list<std::pair<std::string_view, T>> choices) {
  std::string names;
  for (const auto& [name, value] : choices) {
    if (text == name) return value;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  }
  reject("{} is '{}': give one of {}", option, text, names);
}

void check_positive(double value, std::string_view option) {
  if (!std::isfinite(value) || value <= 0) reject("{} is {}: it must be a positive number", option, value);
}

// One target and one load, and no option that matters for others only.
void check_choices(const CLI::App& app, const ServeBenchOptions& options, const OptionTexts& texts) {
  const bool is_server = !options.url.empty(), is_trace = !options.trace.empty(), has_lengths = !options.lengths.empty();
  if (options.model.empty() != is_server) reject("give one of --model and --url");
  if ((options.streams.empty() ? 0 : 1) + (options.rates.empty() ? 0 : 1) + (is_trace ? 1 : 0) != 1)
    reject("give one of --streams, --rate and --trace");
  const std::string wrong = given_in_vain(
      app, {{is_server,
             "with --url: it is of an engine in this process",
             {"--device", "--threads", "--max-batched-tokens", "--max-step-ms", "--max-running", "--block-size", "--max-context",
              "--kv-cache-mib", "--no-prefix-cache"}},
            {!is_server,
             "with --model: it is of a server",
             {"--endpoint", "--model-name", "--tokenizer", "--vocab-size", "--connect-timeout-s", "--read-timeout-s"}},
            {!options.tokenizer.empty(), "with --tokenizer, which has a vocabulary", {"--vocab-size"}},
            {texts.endpoint == "chat", "with --endpoint chat, which is always sent texts", {"--prompts"}},
            {options.rates.empty(), "without --rate", {"--arrivals", "--burst-size"}},
            {texts.arrivals != "burst", "without --arrivals burst", {"--burst-size"}},
            {!is_trace, "without --trace", {"--trace-first-row", "--time-scale", "--length-scale", "--max-gap-s"}},
            {is_trace, "with --trace, which has its own lengths", {"--lengths", "--input-tokens", "--output-tokens"}},
            {has_lengths, "with --lengths, which has them", {"--input-tokens", "--output-tokens"}},
            {!is_trace && !has_lengths,
             "without --trace or --lengths, whose lengths it cuts",
             {"--max-input-tokens", "--max-output-tokens"}}});
  if (!wrong.empty()) reject("{}", wrong);
}

void check_rate(const ServeBenchOptions& options, double rate) {
  check_positive(rate, "--rate");
  ArrivalSpec arrivals = options.arrivals;
  arrivals.rate = rate;
  try {
    arrival_times(arrivals, options.workload.num_requests, options.workload.seed);
  } catch (const Error& error) {
    reject("--{}", error.what());
  }
}

void check_load(const ServeBenchOptions& options) {
  for (const int streams : options.streams)
    if (streams < 1 || streams > 100'000) reject("--streams is {}: it must be from 1 to 100000", streams);
  for (const auto& [count, name] : {std::pair{options.workload.num_requests, "--num-requests"}, {options.num_warmup, "--warmup"}})
    if (count > kMostRequests) reject("{} is {}: it must be at most {}", name, count, kMostRequests);
  if (options.workload.num_requests < 1) reject("--num-requests is 0");
  if (options.arrivals.burst_size < 1) reject("--burst-size is {}: it must be at least 1", options.arrivals.burst_size);
  for (const double rate : options.rates) check_rate(options, rate);
  if (options.replay.first_row < 1) reject("--trace-first-row is 0: rows are counted from 1");
  for (const int streams : options.streams)
    if (static_cast<std::size_t>(streams) > options.workload.num_requests)
      reject("--streams is {}, but --num-requests {}: so many would never be open", streams, options.workload.num_requests);
  check_positive(options.replay.time_scale, "--time-scale");
  check_positive(options.replay.length_scale, "--length-scale");
  check_positive(options.replay.max_gap_s, "--max-gap-s");
  if (options.replay.length_scale > 1) reject("--length-scale is {}: it must be at most 1", options.replay.length_scale);
  const WorkloadSpec& workload = options.workload;
  if (workload.prefix_tokens < 0 || workload.prefix_tokens > 1 << 24) reject("--prefix-tokens is {}", workload.prefix_tokens);
  if (workload.max_input_tokens < 0) reject("--max-input-tokens is {}", workload.max_input_tokens);
  if (workload.max_output_tokens < 0) reject("--max-output-tokens is {}", workload.max_output_tokens);
}

json::value to_json(const std::optional<double>& limit) { return limit ? json::value(*limit) : json::value(nullptr); }

json::object engine_json(const ServeBenchOptions& options) {
  const EngineOptions& engine = options.engine;
  return {{"device", quire::to_string(engine.device)},
          {"threads", engine.num_threads},
          {"max_batched_tokens", engine.max_batched_tokens},
          {"max_step_ms", engine.max_step_ms},
          {"max_running", engine.max_running},
          {"block_size", engine.block_size},
          {"num_blocks", engine.num_blocks},
          {"max_context", engine.max_context},
          {"prefix_cache", engine.prefix_cache},
          {"deterministic", engine.deterministic}};
}

json::object endpoint_json(const ServeBenchOptions& options) {
  const auto seconds = [](std::chrono::milliseconds period) { return static_cast<double>(period.count()) / 1e3; };
  json::object object = {{"url", options.url},
                         {"endpoint", options.endpoint.kind == EndpointKind::kChat ? "chat" : "completions"},
                         {"model_name", options.endpoint.model_name},
                         {"connect_timeout_s", seconds(options.timeouts.connect)},
                         {"read_timeout_s", seconds(options.timeouts.read)}};
  if (options.tokenizer.empty()) {
    object["vocab_size"] = options.vocab_size;
  } else {
    object["tokenizer"] = options.tokenizer;
  }
  return object;
}

}  // namespace

void add_options(CLI::App& app, ServeBenchOptions& options, OptionTexts& texts) {
  add_target_options(app, options, texts);
  add_load_options(app, options, texts);
  add_request_options(app, options, texts);
  add_result_options(app, options, texts);
}

void finish_options(const CLI::App& app, const OptionTexts& texts, ServeBenchOptions& options) {
  check_choices(app, options, texts);
  if (!options.url.empty()) parse_url(options.url);
  options.engine.prefix_cache = !texts.no_prefix_cache;
  if (!std::isfinite(texts.kv_cache_mib) || texts.kv_cache_mib < 0 || texts.kv_cache_mib > 1e9)
    reject("--kv-cache-mib is {}", texts.kv_cache_mib);
  options.engine.kv_cache_bytes = static_cast<std::int64_t>(texts.kv_cache_mib * (1 << 20));
  options.endpoint.kind = choose<EndpointKind>("--endpoint", texts.endpoint,
                                               {{"completions", EndpointKind::kCompletions}, {"chat", EndpointKind::kChat}});
  options.endpoint.sends_text =
      choose<bool>("--prompts", texts.prompts, {{"ids", false}, {"text", true}}) || options.endpoint.kind == EndpointKind::kChat;
  options.endpoint.ignore_eos = !texts.stops_at_eos;
  if (const char* key = std::getenv("OPENAI_API_KEY")) options.endpoint.bearer = key;
  if (!options.url.empty() && options.endpoint.sends_text && options.tokenizer.empty())
    reject("prompts that are texts need --tokenizer, to have the tokens asked for");
  if (options.vocab_size <= 256 || options.vocab_size > 1 << 24)
    reject("--vocab-size is {}: it must be over 256 and at most {}", options.vocab_size, 1 << 24);
  if (!std::isfinite(options.endpoint.temperature) || options.endpoint.temperature < 0)
    reject("--temperature is {}", options.endpoint.temperature);
  options.arrivals.kind =
      choose<ArrivalKind>("--arrivals", texts.arrivals,
                          {{"poisson", ArrivalKind::kPoisson}, {"fixed", ArrivalKind::kFixed}, {"burst", ArrivalKind::kBurst}});
  options.workload.input_tokens = parse_length_range(texts.input_tokens, "--input-tokens");
  options.workload.output_tokens = parse_length_range(texts.output_tokens, "--output-tokens");
  options.timeouts = {.connect = period(texts.connect_timeout_s, "--connect-timeout-s"),
                      .read = period(texts.read_timeout_s, "--read-timeout-s"),
                      .total = period(texts.request_timeout_s, "--request-timeout-s")};
  options.run_timeout = period(texts.run_timeout_s, "--run-timeout-s");
  options.progress = !texts.no_progress;
  check_load(options);
  for (const auto& [limit, name] : {std::pair{options.limits.ttft_ms, "--slo-ttft-ms"},
                                    {options.limits.itl_ms, "--slo-itl-ms"},
                                    {options.limits.tpot_ms, "--slo-tpot-ms"},
                                    {options.limits.e2e_ms, "--slo-e2e-ms"}})
    if (limit) check_positive(*limit, name);
}

json::object to_json(const ServeBenchOptions& options) {
  const WorkloadSpec& workload = options.workload;
  json::object object = options.url.empty() ? engine_json(options) : endpoint_json(options);
  const bool is_trace = !options.trace.empty();
  if (is_trace) {
    object["trace"] = options.trace;
    object["trace_first_row"] = options.replay.first_row;
    object["time_scale"] = options.replay.time_scale;
    object["length_scale"] = options.replay.length_scale;
  } else if (!options.lengths.empty()) {
    object["lengths"] = options.lengths;
  } else {
    object["input_tokens"] = {workload.input_tokens.least, workload.input_tokens.most};
    object["output_tokens"] = {workload.output_tokens.least, workload.output_tokens.most};
  }
  if (is_trace || !options.lengths.empty()) {
    object["max_input_tokens"] = workload.max_input_tokens;
    object["max_output_tokens"] = workload.max_output_tokens;
  }
  if (options.arrivals.kind == ArrivalKind::kBurst) object["burst_size"] = options.arrivals.burst_size;
  object["prefix_tokens"] = workload.prefix_tokens;
  object["prompts"] = options.endpoint.sends_text ? "text" : "ids";
  object["num_requests"] = workload.num_requests;
  object["warmup"] = options.num_warmup;
  object["seed"] = workload.seed;
  object["temperature"] = options.endpoint.temperature;
  object["ignore_eos"] = options.endpoint.ignore_eos;
  object["request_timeout_s"] = static_cast<double>(options.timeouts.total.count()) / 1e3;
  object["run_timeout_s"] = static_cast<double>(options.run_timeout.count()) / 1e3;
  object["allow_failures"] = options.allowed_failures;
  object["slo"] = {{"ttft_ms", to_json(options.limits.ttft_ms)},
                   {"itl_ms", to_json(options.limits.itl_ms)},
                   {"tpot_ms", to_json(options.limits.tpot_ms)},
                   {"e2e_ms", to_json(options.limits.e2e_ms)}};
  return object;
}

}  // namespace quire::bench
