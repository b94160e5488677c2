// Attention of the CPU backend over paged F16 keys and values: microseconds, GB/s of keys and values, GFLOP/s, and the share of
// the bound that the machine sets (reading them once at the bandwidth, or the peak of fma, whichever takes longer; both measured
// in the same run). Shapes are those of the models of scripts/fetch_model.sh: SmolLM2 9 heads on 3 of 64, Gemma 3 4 on 1 of 256.
// Calls rotate through as many layers as fill memory larger than the caches. attention_bench is its twin for GPUs.
//
//   cpu_attention_bench [--isa avx2] [--decode 1x128,8x128,32x2000] [--prefill 512,2000] [--block-size 16] [--megabytes 256] ...
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "benchmarks/command_line.h"
#include "benchmarks/kernels/kernel_bench.h"
#include "core/math.h"

namespace quire {
namespace {

namespace json = boost::json;

struct Options {
  std::vector<std::string> decode{"1x128", "8x128", "32x128", "1x2000", "8x2000", "32x2000"};
  std::vector<int> prefill{512, 2000};
  int block_size = 16;
  bench::KernelFlags flags{.seconds = 0.1};
};

struct Heads {
  const char* name;
  int num_heads, num_kv_heads, head_size;
};
constexpr Heads kHeads[] = {{"9:3 x 64", 9, 3, 64}, {"4:1 x 256", 4, 1, 256}};

struct Shape {
  Heads heads;
  int sequences = 1;
  int new_tokens = 1;  // of each; the last of the context
  int context = 0;
};

// "8x128" as streams and context.
std::optional<std::pair<int, int>> parse_decode(const std::string& text) {
  int sequences = 0, context = 0, end = 0;
  const bool fits = std::sscanf(text.c_str(), "%4dx%7d%n", &sequences, &context, &end) == 2;
  if (!fits || static_cast<std::size_t>(end) != text.size() || sequences < 1 || context < 1) return std::nullopt;
  constexpr std::int64_t kMostTokens = 1 << 28;
  if (std::int64_t{sequences} * context > kMostTokens) return std::nullopt;
  return std::pair(sequences, context);
}

// A step's attention in one of several layers, pages scattered.
class Problem {
 public:
  Problem(Backend& backend, const Shape& shape, const Options& options) : backend_(backend), shape_(shape) {
    const int pages_each = ceil_div(shape.context, options.block_size);
    q_indptr_ = {0}, page_indptr_ = {0};
    for (int s = 0; s < shape.sequences; ++s) {
      q_indptr_.push_back(q_indptr_.back() + shape.new_tokens);
      page_indptr_.push_back(page_indptr_.back() + pages_each);
      kv_lens_.push_back(shape.context);
    }
    pages_.resize(static_cast<std::size_t>(page_indptr_.back()));
    std::iota(pages_.begin(), pages_.end(), 0);
    std::shuffle(pages_.begin(), pages_.end(), std::mt19937(7));

    const Heads& heads = shape.heads;
    half_ = std::int64_t{heads.num_kv_heads} * options.block_size * heads.head_size;
    layer_elements_ = static_cast<std::int64_t>(pages_.size()) * 2 * half_;
    layers_ = std::max<std::int64_t>(1, options.flags.megabytes * 1'000'000 / (layer_elements_ * 2));
    pool_ = backend.allocate(static_cast<std::size_t>(layers_ * layer_elements_ * 2));
    fill_pool();
    const auto rows = static_cast<std::size_t>(q_indptr_.back());
    q_.assign(rows * static_cast<std::size_t>(heads.num_heads * heads.head_size), 0.25f);
    out_.resize(q_.size());
    block_size_ = options.block_size;
  }

  void run(std::int64_t call) {
    auto* keys = static_cast<std::uint16_t*>(pool_.data()) + call % layers_ * layer_elements_;
    const Heads& heads = shape_.heads;
    const auto list = [](std::vector<std::int32_t>& values) {
      return TensorView(values.data(), DType::kI32, {static_cast<std::int64_t>(values.size())});
    };
    AttentionArgs args{.q = TensorView(q_.data(), DType::kF32, {q_indptr_.back(), heads.num_heads, heads.head_size}),
                       .out = TensorView(out_.data(), DType::kF32, {q_indptr_.back(), heads.num_heads, heads.head_size}),
                       .kv = {keys, keys + half_, DType::kF16, 2 * half_, block_size_, heads.num_kv_heads, heads.head_size},
                       .q_indptr = list(q_indptr_),
                       .kv_lens = list(kv_lens_),
                       .page_indptr = list(page_indptr_),
                       .page_indices = list(pages_),
                       .scale = 0.125f,
                       .work = {}};
    shape_.new_tokens == 1 ? backend_.decode_attention(args) : backend_.prefill_attention(args);
  }

  // Keys and values once.
  double bytes() const { return 4.0 * shape_.sequences * shape_.context * shape_.heads.num_kv_heads * shape_.heads.head_size; }
  // A multiplication and an addition for each pair of positions and dimension, for scores and for values.
  double operations() const {
    const double n = shape_.new_tokens, pairs = n * (shape_.context - n) + n * (n + 1) / 2;
    return 4.0 * shape_.sequences * pairs * shape_.heads.num_heads * shape_.heads.head_size;
  }

 private:
  // Random halves of magnitude 1/2 to 2, both signs.
  void fill_pool() {
    std::mt19937 random(1);
    auto* const halves = static_cast<std::uint16_t*>(pool_.data());
    for (std::int64_t i = 0; i < layers_ * layer_elements_; ++i) {
      const auto r = static_cast<std::uint32_t>(random());
      halves[i] = static_cast<std::uint16_t>((r & 0x83ff) | (0x3800 + (r >> 16 & 0x400)));
    }
  }

  Backend& backend_;
  Shape shape_;
  int block_size_ = 0;
  std::vector<std::int32_t> q_indptr_, page_indptr_, kv_lens_, pages_;
  std::int64_t half_ = 0, layer_elements_ = 0, layers_ = 1;
  DeviceBuffer pool_;
  std::vector<float> q_, out_;
};

json::object measure(Backend& backend, const Shape& shape, const Options& options, const bench::Machine& machine) {
  Problem problem(backend, shape, options);
  std::int64_t calls = 0;
  const auto call = [&] { problem.run(calls++); };
  call();
  const std::vector<double> times = bench::time_calls(call, options.flags);
  const char* const kind = shape.new_tokens == 1 ? "decode" : "prefill";
  json::object row{{"heads", shape.heads.name}, {"kind", kind}, {"sequences", shape.sequences}, {"context", shape.context}};
  const bench::Work work{problem.bytes(), problem.operations(), machine.bounds.float_ops_per_s};
  const std::string figures = bench::add_figures(row, times, work, machine.bounds, "gflop_per_s");
  fmt::print("{:10} {:8} {:>5} {:>8} {}", shape.heads.name, kind, shape.sequences, shape.context, figures);
  return row;
}

void run(const Options& options) {
  const bench::Machine machine = bench::measure_machine(options.flags);
  fmt::print("{}; blocks of {}\n", bench::describe(machine), options.block_size);
  fmt::print("{:10} {:8} {:>5} {:>8} {}", "heads", "", "seqs", "context", bench::figures_title("GFLOP/s"));
  CpuBackend backend(machine.kernels, {.num_threads = machine.num_threads});
  json::array rows;
  for (const Heads& heads : kHeads) {
    for (const std::string& text : options.decode) {
      const auto [sequences, context] = *parse_decode(text);
      rows.push_back(measure(backend, {heads, sequences, 1, context}, options, machine));
    }
    for (const int tokens : options.prefill) rows.push_back(measure(backend, {heads, 1, tokens, tokens}, options, machine));
  }
  bench::emit_kernel_report("cpu_attention", options.flags, machine, {{"block_size", options.block_size}}, std::move(rows));
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  quire::Options options;
  CLI::App app("Attention of the CPU backend.");
  const auto is_decode = [](const std::string& text) {
    return quire::parse_decode(text) ? "" : "'" + text + "' is not STREAMSxCONTEXT";
  };
  quire::bench::add_list(app, "--decode", options.decode, "streams x context", is_decode);
  quire::bench::add_list(app, "--prefill", options.prefill, "tokens of one prompt", CLI::Range(2, 1 << 20));
  app.add_option("--block-size", options.block_size, "tokens per KV block")
      ->capture_default_str()
      ->check(quire::bench::a_block_size());
  quire::bench::add_kernel_flags(app, options.flags, "keys and values");
  if (const auto status = quire::bench::parse_flags(app, argc, argv)) return *status;
  return quire::bench::run_guarded("cpu_attention_bench", [&] { quire::run(options); });
}
