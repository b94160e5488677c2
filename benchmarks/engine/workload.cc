#include "benchmarks/engine/workload.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <chrono>
#include <fstream>
#include <random>
#include <stdexcept>
#include <unordered_map>

namespace quire::bench {
namespace {

namespace json = boost::json;
using Clock = std::chrono::steady_clock;

constexpr int kMostOutputTokens = 1 << 20;

double seconds_between(Clock::time_point from, Clock::time_point to) { return std::chrono::duration<double>(to - from).count(); }

// Not std::uniform_int_distribution, whose numbers are the standard library's own.
std::vector<TokenId> random_ids(std::mt19937_64& random, int count, int vocab_size) {
  std::vector<TokenId> ids(static_cast<std::size_t>(count));
  for (TokenId& id : ids) id = static_cast<TokenId>(random() % static_cast<std::uint64_t>(vocab_size));
  return ids;
}

Item parse_item(const std::string& line, const Tokenizer& tokenizer, int default_output_tokens) {
  const json::object object = json::parse(line).as_object();
  Item item;
  if (const json::value* ids = object.if_contains("prompt_ids")) {
    item.prompt = json::value_to<std::vector<TokenId>>(*ids);
  } else if (const json::value* text = object.if_contains("prompt")) {
    item.prompt = tokenizer.encode(json::value_to<std::string>(*text), {.parse_special = true});
  } else {
    throw std::runtime_error("neither \"prompt\" nor \"prompt_ids\"");
  }
  if (item.prompt.empty()) throw std::runtime_error("the prompt has no token");
  const json::value* output = object.if_contains("output_tokens");
  item.output_tokens = output != nullptr ? json::value_to<int>(*output) : default_output_tokens;
  if (item.output_tokens < 1 || item.output_tokens > kMostOutputTokens)
    throw std::runtime_error(fmt::format("output_tokens is {}, outside [1, {}]", item.output_tokens, kMostOutputTokens));
  return item;
}

Request greedy_request(const Item& item) {
  Request request;
  request.prompt = item.prompt;
  request.sampling.temperature = 0;
  request.sampling.max_tokens = item.output_tokens;
  request.sampling.ignore_eos = true;
  return request;
}

}  // namespace

Workload random_workload(const RandomPrompts& prompts, int vocab_size) {
  std::mt19937_64 random(prompts.seed);
  const std::vector<TokenId> prefix = random_ids(random, prompts.shared_prefix, vocab_size);
  Workload workload;
  for (int i = 0; i < prompts.count; ++i) {
    Item item{prefix, prompts.output_tokens};
    const std::vector<TokenId> own = random_ids(random, prompts.prompt_tokens - prompts.shared_prefix, vocab_size);
    item.prompt.insert(item.prompt.end(), own.begin(), own.end());
    workload.push_back(std::move(item));
  }
  return workload;
}

Workload read_workload(const std::string& path, const Tokenizer& tokenizer, int default_output_tokens) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(fmt::format("cannot read the data set {}", path));
  Workload workload;
  int line_number = 0;
  for (std::string line; std::getline(file, line);) {
    ++line_number;
    if (line.empty()) continue;
    try {
      workload.push_back(parse_item(line, tokenizer, default_output_tokens));
    } catch (const std::exception& error) {
      throw std::runtime_error(fmt::format("{}:{}: {}", path, line_number, error.what()));
    }
  }
  if (workload.empty()) throw std::runtime_error(fmt::format("the data set {} is empty", path));
  return workload;
}

Outcome run(Engine& engine, const Workload& workload) {
  struct Open {
    int wanted = 0;
    int tokens = 0;
  };
  std::unordered_map<RequestId, Open> open;
  Outcome outcome;
  const std::int64_t preemptions_before = engine.stats().num_preemptions;
  for (const Item& item : workload) engine.check(greedy_request(item));  // nothing is begun that cannot end
  const Clock::time_point start = Clock::now();
  Clock::time_point all_began = start, now = start;
  for (const Item& item : workload) open.emplace(engine.submit(greedy_request(item)), Open{item.output_tokens, 0});

  std::size_t num_begun = 0;
  while (engine.has_work()) {
    const std::vector<TokenEvent> events = engine.step();
    now = Clock::now();
    const bool had_begun = num_begun == workload.size();
    for (const TokenEvent& event : events) {
      if (event.finish_reason == FinishReason::kError) throw std::runtime_error(event.error);
      Open& request = open.at(event.request_id);
      if (event.token >= 0) {
        if (request.tokens++ == 0) ++num_begun;
        ++outcome.output_tokens;
        outcome.tokens_after_all_began += had_begun ? 1 : 0;
      }
      if (event.finish_reason == FinishReason::kNone) continue;
      if (request.tokens != request.wanted)
        throw std::runtime_error(
            fmt::format("an answer has {} tokens instead of {}: prompt and answer are longer than the context "
                        "of {}",
                        request.tokens, request.wanted, engine.max_context()));
      outcome.prompt_tokens += event.usage.prompt_tokens;
      outcome.cached_tokens += event.usage.cached_tokens;
    }
    if (!had_begun && num_begun == workload.size()) all_began = now;
  }
  outcome.seconds = seconds_between(start, now);
  outcome.seconds_after_all_began = seconds_between(all_began, now);
  outcome.preemptions = engine.stats().num_preemptions - preemptions_before;
  return outcome;
}

}  // namespace quire::bench
