// One request at a time: `single_stream_bench --model FILE`. For each prompt length, the time to the first token, prefill and
// decode rates: the median of some runs, each a new prompt, so that no prefix is found. As its last line one JSON object with
// every parameter. Times are the caller's own: from submit() to the return of the step() with the event.
#include <fmt/format.h>
#include <quire/engine.h>

#include <boost/json.hpp>
#include <chrono>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/command_line.h"
#include "benchmarks/report.h"

namespace {

namespace json = boost::json;
using quire::bench::median, quire::bench::spread;
using Clock = std::chrono::steady_clock;

struct BenchOptions {
  std::string model;
  std::vector<int> prompt_tokens = {32, 128, 512, 1024};
  int output_tokens = 64;
  quire::bench::CommonFlags flags;
};

struct Timing {
  double ttft_ms = 0;
  double decode_tokens_per_s = 0;
};

double milliseconds(Clock::duration duration) { return std::chrono::duration<double, std::milli>(duration).count(); }

// REQUIRES: output_tokens > 1
Timing time_request(quire::Engine& engine, std::vector<quire::TokenId> prompt, int output_tokens) {
  quire::Request request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = output_tokens;
  request.sampling.ignore_eos = true;
  const Clock::time_point start = Clock::now();
  Clock::time_point first = start, last = start;
  int num_tokens = 0;
  engine.submit(std::move(request));
  while (engine.has_work()) {
    for (const quire::TokenEvent& event : engine.step()) {
      if (event.finish_reason == quire::FinishReason::kError) throw std::runtime_error(event.error);
      if (event.token < 0) continue;
      last = Clock::now();
      if (num_tokens++ == 0) first = last;
    }
  }
  if (num_tokens != output_tokens) throw std::runtime_error(fmt::format("{} tokens instead of {}", num_tokens, output_tokens));
  Timing timing;
  timing.ttft_ms = milliseconds(first - start);
  timing.decode_tokens_per_s = (num_tokens - 1) * 1e3 / milliseconds(last - first);
  return timing;
}

// Text-like enough for a dense model, whose time does not depend on the values of the ids.
std::vector<quire::TokenId> random_prompt(std::mt19937& random, int length, int vocab_size) {
  std::uniform_int_distribution<quire::TokenId> token(0, vocab_size - 1);
  std::vector<quire::TokenId> prompt(static_cast<std::size_t>(length));
  for (quire::TokenId& id : prompt) id = token(random);
  return prompt;
}

void run(const BenchOptions& bench) {
  quire::EngineOptions options;
  options.num_threads = bench.flags.threads;
  quire::Engine engine(bench.model, options);
  std::mt19937 random(1);
  const int vocab_size = engine.tokenizer().vocab_size();
  time_request(engine, random_prompt(random, 16, vocab_size), 8);  // touches the weights once

  json::array rows;
  std::string table = fmt::format("{:>8} {:>10} {:>16} {:>16}\n", "prompt", "TTFT ms", "prefill tok/s", "decode tok/s");
  for (const int length : bench.prompt_tokens) {
    std::vector<double> ttft, decode;
    for (int i = 0; i < bench.flags.repeats; ++i) {
      const Timing timing = time_request(engine, random_prompt(random, length, vocab_size), bench.output_tokens);
      ttft.push_back(timing.ttft_ms);
      decode.push_back(timing.decode_tokens_per_s);
    }
    const double prefill = length * 1e3 / median(ttft);
    table += fmt::format("{:>8} {:>10.1f} {:>16.1f} {:>16.1f}\n", length, median(ttft), prefill, median(decode));
    rows.push_back(json::object{{"prompt_tokens", length},
                                {"ttft_ms", median(ttft)},
                                {"prefill_tokens_per_s", prefill},
                                {"decode_tokens_per_s", median(decode)},
                                {"ttft_ms_spread", spread(ttft)},
                                {"decode_tokens_per_s_spread", spread(decode)}});
  }
  fmt::print("{}", table);
  json::object report = quire::bench::report_header("single_stream");
  quire::bench::add_engine(report, bench.model, engine);
  report["output_tokens"] = bench.output_tokens;
  report["repeats"] = bench.flags.repeats;
  report["rows"] = std::move(rows);
  quire::bench::emit(report, bench.flags.json);
}

}  // namespace

int main(int argc, char** argv) {
  BenchOptions bench;
  CLI::App app("Latency and rates of one request at a time.");
  app.add_option("--model", bench.model, "GGUF file, or folder with safetensors")->required();
  quire::bench::add_list(app, "--prompt-tokens", bench.prompt_tokens, "prompt lengths", CLI::PositiveNumber);
  app.add_option("--output-tokens", bench.output_tokens, "tokens generated, at least 2: decoding begins after the first")
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 20));
  quire::bench::add_common_flags(app, bench.flags);
  if (const auto status = quire::bench::parse_flags(app, argc, argv)) return *status;
  return quire::bench::run_guarded("single_stream_bench", [&] { run(bench); });
}
