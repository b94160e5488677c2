// Offline throughput: how fast an engine works off what lies ready.
//
//   throughput_bench --model FILE [--prompts 64] [--prompt-tokens 128] [--output-tokens 64] [--shared-prefix 0] ...
//   throughput_bench --model FILE --dataset FILE.jsonl
//     A whole data set in, tokens/s out. Of a line of the file: "prompt" (text) or "prompt_ids", and perhaps "output_tokens".
//   throughput_bench --model FILE --lock-step 1,8,32 [--prompt-tokens 128] [--output-tokens 64]
//     B streams side by side, in the terms of llama-batched-bench: T_PP and S_PP of B prompts, S_TG of B streams that decode
//     together. Prompts are computed by requests of one token; then the same prompts come again, are found in the prefix cache,
//     and time counts from the step in which the last stream begins to the end. No step of S_TG computes a prompt.
//
// Random prompts are uniform over the vocabulary and a function of --seed; answers are greedy and ignore the model's end tokens.
// Each figure is the median over --repeat runs, none of which finds anything of the others in the prefix cache: random prompts
// are other ones in each, and a data set gets a new engine each time.
#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "benchmarks/command_line.h"
#include "benchmarks/engine/workload.h"
#include "benchmarks/report.h"
#include "core/math.h"
#include "examples/command_line.h"
#include "model/kv_pool.h"
#include "model/model_files.h"
#include "quire/engine.h"

namespace {

namespace json = boost::json;
using namespace quire;
using bench::median, bench::spread, bench::Workload;

struct Options {
  std::string model;
  Device device;
  std::string dataset;
  std::vector<int> lock_step;
  bench::RandomPrompts prompts{.count = 64, .prompt_tokens = 128, .output_tokens = 64};
  int concurrency = 32;
  int block_size = 16;
  int max_batched_tokens = 512;
  std::int64_t kv_megabytes = 0;
  bool prefix_cache = true;
  bench::CommonFlags flags;
};

// Blocks for `streams` sequences of `tokens`, windows or not: of sliding layers, too, everything stays findable.
std::int64_t blocks_for(const Options& options, std::int64_t streams, std::int64_t tokens) {
  const ModelConfig config = open_model(options.model).config;
  const auto groups = static_cast<std::int64_t>(kv_group_layouts(config).size());
  return 1 + streams * groups * (ceil_div<std::int64_t>(tokens, options.block_size) + 1);
}

EngineOptions engine_options(const Options& options) {
  EngineOptions engine;
  engine.device = options.device;
  engine.num_threads = options.flags.threads;
  engine.block_size = options.block_size;
  engine.max_batched_tokens = options.max_batched_tokens;
  engine.prefix_cache = options.prefix_cache;
  engine.kv_cache_bytes = options.kv_megabytes * 1'000'000;
  return engine;
}

// An engine that has touched the weights and the scratch memory once.
void start(std::optional<Engine>& engine, const std::string& model, const EngineOptions& options) {
  engine.reset();
  engine.emplace(model, options);
  bench::RandomPrompts prompts{.count = 2, .prompt_tokens = 16, .output_tokens = 8, .seed = 0x9e3779b9};
  bench::run(*engine, bench::random_workload(prompts, engine->tokenizer().vocab_size()));
}

// ---- a data set

json::object run_dataset(const Options& options, const EngineOptions& engine_opts, std::optional<Engine>& engine) {
  std::vector<double> seconds, output_rate, total_rate;
  json::object last;
  for (int i = 0; i < options.flags.repeats; ++i) {
    bench::RandomPrompts prompts = options.prompts;
    prompts.seed += static_cast<std::uint64_t>(i);
    if (i > 0 && !options.dataset.empty()) start(engine, options.model, engine_opts);
    const Workload workload = options.dataset.empty()
                                  ? bench::random_workload(prompts, engine->tokenizer().vocab_size())
                                  : bench::read_workload(options.dataset, *engine, options.prompts.output_tokens);
    const bench::Outcome outcome = bench::run(*engine, workload);
    seconds.push_back(outcome.seconds);
    output_rate.push_back(static_cast<double>(outcome.output_tokens) / outcome.seconds);
    total_rate.push_back(static_cast<double>(outcome.prompt_tokens + outcome.output_tokens) / outcome.seconds);
    last = {{"requests", workload.size()},
            {"prompt_tokens_total", outcome.prompt_tokens},
            {"output_tokens_total", outcome.output_tokens},
            {"cached_tokens_total", outcome.cached_tokens},
            {"preemptions", outcome.preemptions}};
  }
  fmt::print("{:>10} {:>12} {:>12} {:>12} {:>10} {:>14} {:>14}\n", "requests", "tokens in", "from cache", "tokens out", "seconds",
             "tokens/s out", "in and out");
  fmt::print("{:>10} {:>12} {:>12} {:>12} {:>10.2f} {:>14.1f} {:>14.1f}\n", last["requests"].to_number<std::int64_t>(),
             last["prompt_tokens_total"].as_int64(), last["cached_tokens_total"].as_int64(),
             last["output_tokens_total"].as_int64(), median(seconds), median(output_rate), median(total_rate));
  last["seconds"] = spread(seconds);
  last["output_tokens_per_s"] = spread(output_rate);
  last["tokens_per_s"] = spread(total_rate);
  return last;
}

// ---- lock-step

struct LockStep {
  std::vector<double> prompt_seconds, prompt_rate, decode_seconds, decode_rate;
};

LockStep run_lock_step(const Options& options, Engine& engine, int streams) {
  LockStep times;
  for (int i = 0; i < options.flags.repeats; ++i) {
    bench::RandomPrompts prompts = options.prompts;
    prompts.count = streams;
    prompts.seed += static_cast<std::uint64_t>(i * 1000 + streams);
    Workload workload = bench::random_workload(prompts, engine.tokenizer().vocab_size());
    for (bench::Item& item : workload) item.output_tokens = 1;
    const bench::Outcome filled = bench::run(engine, workload);
    if (filled.cached_tokens > 0)
      throw std::runtime_error(fmt::format("{} tokens of the prompts were in the prefix cache already: is {} given twice?",
                                           filled.cached_tokens, streams));
    for (bench::Item& item : workload) item.output_tokens = prompts.output_tokens;
    const bench::Outcome decoded = bench::run(engine, workload);
    if (decoded.tokens_after_all_began == 0)
      throw std::runtime_error(
          fmt::format("streams of {} tokens end before all {} have begun: the prefix cache does not hold the "
                      "prompts",
                      prompts.output_tokens, streams));
    times.prompt_seconds.push_back(filled.seconds);
    times.prompt_rate.push_back(static_cast<double>(filled.prompt_tokens) / filled.seconds);
    times.decode_seconds.push_back(decoded.seconds_after_all_began);
    times.decode_rate.push_back(static_cast<double>(decoded.tokens_after_all_began) / decoded.seconds_after_all_began);
  }
  return times;
}

json::object run_lock_steps(const Options& options, Engine& engine) {
  std::string table =
      fmt::format("{:>4} {:>6} {:>6} {:>10} {:>12} {:>10} {:>12}\n", "B", "PP", "TG", "T_PP s", "S_PP t/s", "T_TG s", "S_TG t/s");
  json::array rows;
  for (const int streams : options.lock_step) {
    const LockStep times = run_lock_step(options, engine, streams);
    table += fmt::format("{:>4} {:>6} {:>6} {:>10.3f} {:>12.1f} {:>10.3f} {:>12.1f}\n", streams, options.prompts.prompt_tokens,
                         options.prompts.output_tokens, median(times.prompt_seconds), median(times.prompt_rate),
                         median(times.decode_seconds), median(times.decode_rate));
    rows.push_back({{"streams", streams},
                    {"t_pp_s", spread(times.prompt_seconds)},
                    {"s_pp", spread(times.prompt_rate)},
                    {"t_tg_s", spread(times.decode_seconds)},
                    {"s_tg", spread(times.decode_rate)}});
  }
  fmt::print("{}", table);
  return {{"rows", rows}};
}

// The parameters of the prompts, of those that the mode has.
void add_prompts(json::object& report, const Options& options) {
  report["output_tokens"] = options.prompts.output_tokens;
  if (!options.dataset.empty()) {
    report["dataset"] = options.dataset;
    return;
  }
  report["prompt_tokens"] = options.prompts.prompt_tokens;
  report["seed"] = options.prompts.seed;
  if (!options.lock_step.empty()) return;
  report["prompts"] = options.prompts.count;
  report["shared_prefix"] = options.prompts.shared_prefix;
}

void run(const Options& options) {
  EngineOptions engine_opts = engine_options(options);
  if (options.lock_step.empty()) {
    engine_opts.max_running = options.concurrency;
  } else {
    const int most = *std::max_element(options.lock_step.begin(), options.lock_step.end());
    engine_opts.max_running = std::max(most, 2);
    if (options.kv_megabytes == 0)
      engine_opts.num_blocks = blocks_for(options, most, options.prompts.prompt_tokens + options.prompts.output_tokens);
  }
  std::optional<Engine> engine;
  start(engine, options.model, engine_opts);
  json::object results = options.lock_step.empty() ? run_dataset(options, engine_opts, engine) : run_lock_steps(options, *engine);

  json::object report = bench::report_header("throughput");
  bench::add_engine(report, options.model, *engine);
  report["mode"] = !options.lock_step.empty() ? "lock_step" : options.dataset.empty() ? "random" : "dataset";
  add_prompts(report, options);
  report["ignore_eos"] = true;
  report["repeats"] = options.flags.repeats;
  for (auto& entry : results) report[entry.key()] = std::move(entry.value());
  bench::emit(report, options.flags.json);
}

// What is wrong with flags that are right one by one; empty: nothing.
std::string contradiction(const CLI::App& app, const Options& options) {
  const bool is_lock_step = !options.lock_step.empty(), is_dataset = !options.dataset.empty();
  if (std::string wrong = bench::given_in_vain(
          app,
          {{is_lock_step, "with --lock-step, which has as many prompts and requests as streams", {"--prompts", "--concurrency"}},
           {is_lock_step, "with --lock-step, where every stream has its own KV", {"--shared-prefix"}},
           {is_lock_step, "with --lock-step, which finds the prompts in the prefix cache", {"--no-prefix-cache"}},
           {is_dataset,
            "with --dataset, which has its own prompts",
            {"--prompts", "--prompt-tokens", "--shared-prefix", "--seed"}}});
      !wrong.empty())
    return wrong;
  if (options.prompts.shared_prefix >= options.prompts.prompt_tokens)
    return fmt::format("--shared-prefix {} leaves nothing of --prompt-tokens {}", options.prompts.shared_prefix,
                       options.prompts.prompt_tokens);
  if (is_lock_step && options.prompts.output_tokens < 2) return "--lock-step needs --output-tokens of at least 2";
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Offline throughput: a data set in, tokens/s out; or streams in lock-step.");
  const CLI::Range tokens(1, 1 << 20), streams(1, 4096);
  app.add_option("--model", options.model, "GGUF file, or folder with safetensors")->required();
  bench::add_device(app, options.device);
  auto* dataset = app.add_option("--dataset", options.dataset, "JSON lines with \"prompt\" or \"prompt_ids\"");
  auto* lock_step = bench::add_list(app, "--lock-step", options.lock_step, "numbers of streams", streams);
  app.add_option("--prompts", options.prompts.count, "random prompts")->capture_default_str()->check(CLI::Range(1, 1'000'000));
  app.add_option("--prompt-tokens", options.prompts.prompt_tokens, "tokens of each")->capture_default_str()->check(tokens);
  app.add_option("--output-tokens", options.prompts.output_tokens, "tokens generated for each")
      ->capture_default_str()
      ->check(tokens);
  app.add_option("--shared-prefix", options.prompts.shared_prefix, "tokens that all prompts begin with, within --prompt-tokens")
      ->check(CLI::Range(0, 1 << 20));
  app.add_option("--concurrency", options.concurrency, "requests that share the steps")->capture_default_str()->check(streams);
  app.add_option("--block-size", options.block_size, "tokens per KV block")->capture_default_str()->check(bench::a_block_size());
  app.add_option("--max-batched-tokens", options.max_batched_tokens, "tokens of one step")->capture_default_str()->check(tokens);
  app.add_option("--kv-megabytes", options.kv_megabytes, "KV memory; 0: enough for --lock-step, else the engine's choice")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 30));
  app.add_flag("!--no-prefix-cache", options.prefix_cache, "compute every prompt whole");
  app.add_option("--seed", options.prompts.seed, "of the random prompts")->capture_default_str()->check(unsigned_number());
  bench::add_common_flags(app, options.flags);
  dataset->excludes(lock_step);
  if (const auto status = bench::parse_flags(app, argc, argv)) return *status;
  return bench::run_guarded("throughput_bench", contradiction(app, options), [&] { run(options); });
}
