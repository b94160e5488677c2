#include "benchmarks/engine/workload.h"

#include <fmt/format.h>

#include <chrono>
#include <random>
#include <stdexcept>
#include <unordered_map>

#include "benchmarks/json_lines.h"

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

Item parse_item(const json::object& line, const Tokenizer& tokenizer, int default_output_tokens) {
  Item item;
  if (line.contains("prompt_ids")) {
    item.prompt = ids_field(line, "prompt_ids");
  } else if (line.contains("prompt")) {
    item.prompt = tokenizer.encode(text_field(line, "prompt"), {.parse_special = true});
  } else {
    throw std::runtime_error("there is neither prompt nor prompt_ids");
  }
  item.output_tokens =
      line.contains("output_tokens") ? whole_field(line, "output_tokens", 1, kMostOutputTokens) : default_output_tokens;
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

// Throws if the engine cannot answer it at its length.
void check(const Engine& engine, const Item& item) {
  if (item.prompt.empty()) throw std::runtime_error("the prompt has no token");
  engine.check(greedy_request(item));
  if (static_cast<std::int64_t>(item.prompt.size()) + item.output_tokens > engine.max_context())
    throw std::runtime_error(fmt::format("a prompt of {} tokens and an answer of {} are longer than the context of {}",
                                         item.prompt.size(), item.output_tokens, engine.max_context()));
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

Workload read_workload(const std::string& path, const Engine& engine, int default_output_tokens) {
  Workload workload;
  read_json_lines(path, "data set", [&](const json::object& line) {
    workload.push_back(parse_item(line, engine.tokenizer(), default_output_tokens));
    check(engine, workload.back());
  });
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
  for (const Item& item : workload) check(engine, item);  // nothing is begun that cannot end
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
      if (request.tokens != request.wanted) {
        // The context was checked, so a length that ends early is the pool's.
        const std::int64_t blocks = engine.stats().total_blocks;
        throw std::runtime_error(fmt::format("an answer ends after {} tokens instead of {}: {}", request.tokens, request.wanted,
                                             event.finish_reason == FinishReason::kLength
                                                 ? fmt::format("the KV pool of {} blocks holds no more", blocks)
                                                 : to_string(event.finish_reason)));
      }
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
