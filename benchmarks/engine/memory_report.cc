// What a model takes of memory, and what fits beside it: weights by type, KV bytes a token, blocks, tokens and requests,
// activations and scratch memory. From the header of the file (or of the files of a split model, or of a folder with safetensors)
// alone.
//
//   memory_report --model FILE [--memory 8G] [--tokens 512,2048,8192] [--max-context N] [--kv-type f16] [--json FILE] ...
//   memory_report --model FILE --measure
//     builds the engine as well, fills its KV pool, and sets the plan beside the resident memory that the process gained.
#include <fmt/format.h>
#include <malloc.h>

#include <string>
#include <vector>

#include "benchmarks/command_line.h"
#include "benchmarks/engine/memory_plan.h"
#include "benchmarks/engine/workload.h"
#include "benchmarks/report.h"
#include "core/check.h"
#include "core/math.h"
#include "engine/engine_options.h"
#include "examples/command_line.h"

namespace {

namespace json = boost::json;
using namespace quire;
using bench::Capacity, bench::MemoryPlan, bench::WeightClass;

struct Options {
  std::string model;
  std::int64_t memory = 0;  // bytes; 0: not asked
  std::vector<int> tokens = {512, 2048, 8192};
  bool measure = false;
  EngineOptions engine;
  std::string json;
};

double megabytes(std::int64_t bytes) { return static_cast<double>(bytes) * 1e-6; }

std::string row(const std::string& name, std::int64_t bytes, const std::string& note = "") {
  return fmt::format("{:<28}{:>12.1f} MB  {}\n", name, megabytes(bytes), note);
}

// Bytes of this process in memory.
std::int64_t resident_bytes() {
  malloc_trim(0);
  return bench::own_memory("VmRSS");
}

// ---- the plan

std::string show_plan(const ModelFiles& files, const Options& options, const MemoryPlan& plan) {
  const ModelConfig& config = files.config;
  std::string text = fmt::format("{}: {}, {} layers, {:.1f}M parameters, context of {} tokens\n", options.model, config.family,
                                 config.num_layers, static_cast<double>(plan.num_parameters) * 1e-6, config.max_context);
  for (const WeightClass& weight : plan.weights) {
    text += row(fmt::format("weights {}", to_string(weight.dtype)), weight.num_bytes,
                fmt::format("{} tensors, {:.2f} bits a weight", weight.num_tensors,
                            8.0 * static_cast<double>(weight.num_bytes) / static_cast<double>(weight.num_elements)));
  }
  text += row("weights", plan.weight_bytes,
              fmt::format("{:.2f} bits a weight",
                          8.0 * static_cast<double>(plan.weight_bytes) / static_cast<double>(plan.num_parameters)));
  text += row("activations", plan.activation_bytes, fmt::format("a step of {} tokens", options.engine.max_batched_tokens));
  text += row("scratch", plan.scratch_bytes, "of the kernels");
  text += fmt::format("{:<28}{:>12} B   {}\n", "KV a token", plan.token_bytes,
                      plan.distant_token_bytes < plan.token_bytes
                          ? fmt::format("{} B once the windows have passed it", plan.distant_token_bytes)
                          : "");
  text += fmt::format("{:<28}{:>12} B   {} tokens of one of {} KV groups\n", "KV block", plan.block_bytes,
                      options.engine.block_size, plan.num_kv_groups);
  return text;
}

json::object plan_json(const MemoryPlan& plan) {
  json::array weights;
  for (const WeightClass& weight : plan.weights) {
    weights.push_back({{"type", to_string(weight.dtype)},
                       {"tensors", weight.num_tensors},
                       {"elements", weight.num_elements},
                       {"bytes", weight.num_bytes}});
  }
  return {{"parameters", plan.num_parameters},
          {"weights", weights},
          {"weight_bytes", plan.weight_bytes},
          {"activation_bytes", plan.activation_bytes},
          {"scratch_bytes", plan.scratch_bytes},
          {"kv_groups", plan.num_kv_groups},
          {"kv_block_bytes", plan.block_bytes},
          {"kv_token_bytes", plan.token_bytes},
          {"kv_distant_token_bytes", plan.distant_token_bytes}};
}

// ---- what fits

json::object show_capacity(const ModelFiles& files, const Options& options, const MemoryPlan& plan, std::string& text) {
  const std::int64_t kv_bytes = options.memory - plan.fixed_bytes();
  const Capacity fits = bench::capacity(plan, options.engine, kv_bytes);
  if (fits.num_blocks < plan.num_kv_groups) {
    fail(ErrorCode::kOutOfMemory,
         "--memory {} leaves {} bytes for KV after weights, activations and scratch memory ({} bytes): not "
         "{} blocks of {} bytes",
         options.memory, std::max<std::int64_t>(kv_bytes, 0), plan.fixed_bytes(), 1 + plan.num_kv_groups, plan.block_bytes);
  }
  text += row("KV within --memory", kv_bytes, fmt::format("{} blocks, {} tokens", fits.num_blocks, fits.num_tokens));
  json::array requests;
  for (const int tokens : options.tokens) {
    if (tokens > files.config.max_context) continue;  // the model cannot hold it
    const std::int64_t count = bench::requests_that_fit(files, options.engine, fits.num_blocks, tokens);
    text += fmt::format("{:<28}{:>12} requests\n", fmt::format("  of {} tokens each", tokens), count);
    requests.push_back({{"tokens", tokens}, {"requests", count}});
  }
  return {{"memory_bytes", options.memory},
          {"kv_bytes", kv_bytes},
          {"blocks", fits.num_blocks},
          {"tokens", fits.num_tokens},
          {"requests", requests}};
}

// ---- the plan beside the truth

// Writes every block of the pool and every row of logits: prompts short enough to lie within any window, as many as fill the
// pool, then as many short ones as are sampled at once.
void fill(Engine& engine, int context, int logit_rows) {
  constexpr int kPrompt = 256;
  const int vocab_size = engine.tokenizer().vocab_size();
  const int length = std::min(kPrompt, context);
  const bench::RandomPrompts blocks{.count = context / length, .prompt_tokens = length - 1, .output_tokens = 1};
  bench::run(engine, bench::random_workload(blocks, vocab_size));
  const bench::RandomPrompts rows{.count = logit_rows, .prompt_tokens = 2, .output_tokens = 1};
  bench::run(engine, bench::random_workload(rows, vocab_size));
}

json::object measure(const ModelFiles& files, const Options& options, std::string& text) {
  EngineOptions engine_options = options.engine;
  if (engine_options.max_context == 0) engine_options.max_context = std::min(files.config.max_context, 4096);
  const int context = engine_options.max_context;
  const std::int64_t per_group = ceil_div(context, engine_options.block_size);
  engine_options.num_blocks = 1 + per_group * static_cast<std::int64_t>(kv_group_layouts(files.config).size());
  const MemoryPlan plan = bench::plan_memory(files, engine_options);

  const std::int64_t before = resident_bytes();
  const Tokenizer tokenizer = load_tokenizer(options.model);
  const std::int64_t tokenizer_bytes = resident_bytes() - before;
  Engine engine(options.model, engine_options);
  fill(engine, context, max_logit_rows(files.config));
  // The tokenizer is there twice, the engine's own and ours.
  const std::int64_t gained = resident_bytes() - before - 2 * tokenizer_bytes;
  const std::int64_t kv_bytes = engine.stats().kv_bytes;
  const std::int64_t planned = plan.fixed_bytes() + kv_bytes;
  const double ratio = static_cast<double>(gained) / static_cast<double>(planned);
  text += fmt::format("measured with a pool of {} tokens, {:.1f} MB, all written:\n", context, megabytes(kv_bytes));
  text += row("  planned", planned);
  text += row("  resident", gained, fmt::format("{:.2f} of the plan", ratio));
  text += row("  tokenizer, beside it", tokenizer_bytes);
  return {{"context", context},
          {"kv_bytes", kv_bytes},
          {"weight_bytes", engine.stats().weight_bytes},
          {"planned_bytes", planned},
          {"resident_bytes", gained},
          {"tokenizer_bytes", tokenizer_bytes},
          {"ratio", ratio}};
}

void run(const Options& options) {
  const ModelFiles files = open_model(options.model);
  if (options.engine.max_context > files.config.max_context) {
    fail(ErrorCode::kInvalidArgument, "--max-context {} is more than the {} of the model", options.engine.max_context,
         files.config.max_context);
  }
  const MemoryPlan plan = bench::plan_memory(files, options.engine);
  std::string text = show_plan(files, options, plan);
  json::object report = bench::report_header("memory");
  report["model"] = options.model;
  report["block_size"] = options.engine.block_size;
  report["max_batched_tokens"] = options.engine.max_batched_tokens;
  report["max_context"] = options.engine.max_context;
  report["plan"] = plan_json(plan);
  if (options.memory > 0) report["capacity"] = show_capacity(files, options, plan, text);
  if (options.measure) report["measured"] = measure(files, options, text);
  fmt::print("{}", text);
  bench::emit(report, options.json);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  const std::map<std::string, KvType> kv_types = {{"f16", KvType::kF16}, {"bf16", KvType::kBF16}, {"f32", KvType::kF32}};
  CLI::App app("What a model takes of memory, and what fits beside it.");
  app.add_option("--model", options.model, "GGUF file (of a split model any one), or folder with safetensors")->required();
  app.add_option("--memory", options.memory, "memory for weights, KV and all else, as 8G or 512M; what fits is told")
      ->transform(CLI::AsSizeValue(true))
      ->transform(unsigned_number())
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 50));
  bench::add_list(app, "--tokens", options.tokens, "with --memory: lengths of requests, prompt and answer together",
                  CLI::Range(1, 1 << 30));
  app.add_option("--kv-type", options.engine.kv_type, "f16, bf16 or f32")->transform(CLI::CheckedTransformer(kv_types));
  app.add_option("--block-size", options.engine.block_size, "tokens per KV block")
      ->capture_default_str()
      ->check(bench::a_block_size());
  app.add_option("--max-context", options.engine.max_context, "tokens; 0: the model's own, with --measure at most 4096")
      ->check(CLI::Range(0, 1 << 30))
      ->check([](const std::string& text) { return text == "1" ? "1 token holds no prompt with an answer" : ""; });
  app.add_option("--max-batched-tokens", options.engine.max_batched_tokens, "tokens of one step")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 16));
  app.add_option("--threads", options.engine.num_threads, "CPU threads; 0: the cores this process may use")
      ->check(CLI::Range(0, 1024));
  app.add_flag("--measure", options.measure, "build the engine, fill its KV, and compare");
  bench::add_json_flag(app, options.json);
  if (const auto status = bench::parse_flags(app, argc, argv)) return *status;
  const std::string wrong = bench::given_in_vain(app, {{options.memory == 0, "without --memory", {"--tokens"}}});
  return bench::run_guarded("memory_report", wrong, [&] { run(options); });
}
