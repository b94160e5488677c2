// How far the engine's probabilities are from a golden file's: `logprob_bench --model FILE --golden FILE.jsonl`.
// Each golden text and its greedy continuation are fed as one prompt (teacher forcing), so that a token that differs does not
// make the rest incomparable. Prints a table, and as its last line one JSON object. See tests/golden/README.md for the format.
#include <fmt/format.h>
#include <quire/engine.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstdio>
#include <exception>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/command_line.h"
#include "benchmarks/json_lines.h"
#include "benchmarks/report.h"

namespace {

namespace json = boost::json;
using quire::TokenId;
using quire::bench::ids_field, quire::bench::list_field, quire::bench::number_field, quire::bench::numbers_field,
    quire::bench::text_field, quire::bench::whole_field;

struct GoldenText {
  std::string name;
  std::string prompt;
  std::vector<TokenId> ids;      // prompt, then greedy continuation
  std::vector<double> logprobs;  // of ids[i + 1], natural logarithm
  std::vector<double> margins;   // of each greedy token over its runner-up
  std::size_t num_prompt = 0;    // ids of the prompt
};

struct Difference {
  double sum = 0;
  double max = 0;
  std::size_t count = 0;

  void add(double difference) {
    sum += difference;
    max = std::max(max, difference);
    ++count;
  }
  void add(const Difference& other) {
    sum += other.sum;
    max = std::max(max, other.max);
    count += other.count;
  }
  double mean() const { return count > 0 ? sum / static_cast<double>(count) : 0; }
};

struct Comparison {
  Difference prompt, greedy;  // |our logprob - golden logprob|
  int greedy_mismatches = 0;  // clear greedy tokens (margin over the limit) that are not our likeliest
  int tokenizer_mismatches = 0;

  void add(const Comparison& other) {
    prompt.add(other.prompt);
    greedy.add(other.greedy);
    greedy_mismatches += other.greedy_mismatches;
    tokenizer_mismatches += other.tokenizer_mismatches;
  }
};

GoldenText parse_golden(const json::object& line) {
  GoldenText golden;
  golden.name = text_field(line, "name");
  golden.prompt = text_field(line, "prompt");
  golden.ids = ids_field(line, "prompt_ids");
  golden.logprobs = numbers_field(line, "prompt_logprobs");
  golden.num_prompt = golden.ids.size();
  if (golden.ids.empty() || golden.logprobs.size() != golden.ids.size() - 1)
    throw std::runtime_error(fmt::format("{} prompt_logprobs for {} prompt_ids", golden.logprobs.size(), golden.ids.size()));
  for (const json::value& value : list_field(line, "greedy")) {
    if (!value.is_object())
      throw std::runtime_error(
          fmt::format("greedy[{}] is {}, expected an object", golden.margins.size(), json::serialize(value)));
    const json::object& step = value.get_object();
    golden.ids.push_back(whole_field(step, "id", 0, std::numeric_limits<TokenId>::max()));
    golden.logprobs.push_back(number_field(step, "logprob"));
    golden.margins.push_back(number_field(step, "margin"));
  }
  return golden;
}

std::vector<GoldenText> read_golden(const std::string& path) {
  std::vector<GoldenText> texts;
  quire::bench::read_json_lines(path, "golden file", [&](const json::object& line) { texts.push_back(parse_golden(line)); });
  return texts;
}

// The engine's logprobs of every id but the first, with the likeliest token of each place.
std::vector<quire::PositionLogprobs> score(quire::Engine& engine, const std::vector<TokenId>& ids) {
  quire::Request request;
  request.prompt = ids;
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 1;
  request.sampling.prompt_logprobs = 1;
  engine.submit(std::move(request));
  std::vector<quire::PositionLogprobs> places;
  while (engine.has_work()) {
    for (quire::TokenEvent& event : engine.step()) {
      if (event.finish_reason == quire::FinishReason::kError) throw std::runtime_error(event.error);
      if (!event.prompt_logprobs.empty()) places = std::move(event.prompt_logprobs);
    }
  }
  if (places.size() != ids.size() - 1)
    throw std::runtime_error(fmt::format("{} prompt_logprobs came back for {} tokens", places.size(), ids.size()));
  return places;
}

Comparison compare(quire::Engine& engine, const GoldenText& golden, double clear_margin) {
  Comparison result;
  const std::vector<TokenId> ours = engine.tokenizer().encode(golden.prompt, {.add_special = true, .parse_special = true});
  if (!std::equal(ours.begin(), ours.end(), golden.ids.begin(),
                  golden.ids.begin() + static_cast<std::ptrdiff_t>(golden.num_prompt)))
    result.tokenizer_mismatches = 1;

  const std::vector<quire::PositionLogprobs> places = score(engine, golden.ids);
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (places[i].chosen.token != golden.ids[i + 1] || places[i].top.empty())
      throw std::runtime_error(fmt::format("'{}': prompt_logprobs[{}] is of token {}, not {}, or has no alternative", golden.name,
                                           i, places[i].chosen.token, golden.ids[i + 1]));
    const double logprob = places[i].chosen.logprob;
    if (!std::isfinite(logprob))
      throw std::runtime_error(fmt::format("'{}': logprob of token {} is {}", golden.name, i + 1, logprob));
    const double difference = std::abs(logprob - golden.logprobs[i]);
    if (i + 1 < golden.num_prompt) {
      result.prompt.add(difference);
      continue;
    }
    result.greedy.add(difference);
    const bool is_clear = golden.margins[i + 1 - golden.num_prompt] > clear_margin;
    if (is_clear && places[i].top.front().token != golden.ids[i + 1]) ++result.greedy_mismatches;
  }
  return result;
}

void print_row(const std::string& name, const Comparison& c) {
  fmt::print("{:<24} {:>6} {:>9.4f} {:>9.4f} {:>7} {:>9.4f} {:>9.4f} {:>9} {:>9}\n", name, c.prompt.count, c.prompt.mean(),
             c.prompt.max, c.greedy.count, c.greedy.mean(), c.greedy.max, c.greedy_mismatches, c.tokenizer_mismatches);
}

void run(const std::string& model, const std::string& golden_path, int threads, double clear_margin,
         const std::string& json_file) {
  const std::vector<GoldenText> texts = read_golden(golden_path);
  quire::EngineOptions options;
  options.num_threads = threads;
  quire::Engine engine(model, options);

  fmt::print("{:<24} {:>6} {:>9} {:>9} {:>7} {:>9} {:>9} {:>9} {:>9}\n", "|d logprob| of", "prompt", "mean", "max", "greedy",
             "mean", "max", "other top", "tokenizer");
  Comparison total;
  for (const GoldenText& golden : texts) {
    const Comparison result = compare(engine, golden, clear_margin);
    print_row(golden.name, result);
    total.add(result);
  }
  print_row("all", total);

  json::object out = quire::bench::report_header("logprob");
  quire::bench::add_engine(out, model, engine);
  out["golden"] = golden_path;
  out["margin"] = clear_margin;
  out["prompts"] = texts.size();
  out["tokens"] = total.prompt.count + total.greedy.count;
  out["mean_abs_dlogprob_prompt"] = total.prompt.mean();
  out["max_abs_dlogprob_prompt"] = total.prompt.max;
  out["mean_abs_dlogprob_greedy"] = total.greedy.mean();
  out["max_abs_dlogprob_greedy"] = total.greedy.max;
  out["greedy_mismatches"] = total.greedy_mismatches;
  out["tokenizer_mismatches"] = total.tokenizer_mismatches;
  quire::bench::emit(out, json_file);
}

}  // namespace

int main(int argc, char** argv) {
  std::string model, golden, json_file;
  int threads = 0;
  double clear_margin = 0.3;
  CLI::App app("Compares the engine's log probabilities with a golden file.");
  app.add_option("--model", model, "GGUF file, or folder with safetensors")->required();
  app.add_option("--golden", golden, "golden file, one JSON object a line")->required();
  app.add_option("--threads", threads, "CPU threads; 0: all cores")->check(CLI::Range(0, 1024));
  quire::bench::add_json_flag(app, json_file);
  app.add_option("--margin", clear_margin, "greedy tokens ahead by less (natural log) may differ")->capture_default_str();
  if (const auto status = quire::bench::parse_flags(app, argc, argv)) return *status;
  return quire::bench::run_guarded("logprob_bench", [&] { run(model, golden, threads, clear_margin, json_file); });
}
