// Matrix products of the CPU kernels: time, weight bandwidth and integer operations a second, by weight type, shape and number of
// rows. Weights are rotated through a buffer larger than the caches, as in a model.
// matmul_bench [--isa avx2] [--threads 2] [--type Q4_1] [--rows 1,8,512] [--shape 576x1536] [--megabytes 96] [--seconds 0.5]
#include <fmt/format.h>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "examples/command_line.h"
#include "kernels/cpu/kernels.h"

namespace quire {
namespace {

constexpr DType kTypes[]{DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0, DType::kQ4_K,
                         DType::kQ5_K, DType::kQ6_K, DType::kF16,  DType::kBF16, DType::kF32};

struct Options {
  std::string isa = "avx2";
  int threads = 0;
  std::string type = "all";
  std::vector<std::int64_t> rows{1, 8, 512};
  std::vector<std::string> shapes{"576x1536", "1536x576", "2048x2048"};  // K x M
  std::int64_t megabytes = 96;
  double seconds = 0.5;
  bool rows_layout = false;  // quantised weights as files have them, not as panels
};

// Zeros would do for speed in most formats, but random bits keep the processor's shortcuts for zeros out of the picture.
std::vector<std::uint64_t> random_words(std::size_t bytes) {
  std::mt19937_64 random(1);
  std::vector<std::uint64_t> words(bytes / 8 + 1);
  for (std::uint64_t& w : words) w = random() & 0xbfffbfffbfffbfffu;  // as 16-bit floats: below 2
  return words;
}

void measure(const cpu::KernelTable& kernels, ThreadPool& pool, const Options& options, DType type, std::int64_t inner,
             std::int64_t outer, std::int64_t rows) {
  if (inner % block_elements(type) != 0) return;
  const std::int64_t matrix_bytes = is_quantized(type) ? cpu::packed_bytes(type, outer, inner) : row_bytes(type, inner * outer);
  const std::int64_t copies = std::max<std::int64_t>(1, options.megabytes * 1'000'000 / matrix_bytes);
  std::vector<std::uint64_t> weights = random_words(static_cast<std::size_t>(copies * matrix_bytes));
  const Layout layout = is_quantized(type) && !options.rows_layout ? Layout::kPanels : Layout::kRows;  // random bits as panels
  std::vector<float> x(static_cast<std::size_t>(rows * inner), 0.7f), out(static_cast<std::size_t>(rows * outer));
  void* scratch = ::operator new (cpu::matmul_scratch_bytes(rows, inner) + 1, std::align_val_t{64});
  MatmulArgs args;
  args.x = TensorView(x.data(), DType::kF32, {rows, inner});
  args.num_projections = 1;
  args.projections[0].out = TensorView(out.data(), DType::kF32, {rows, outer});
  const auto run = [&](std::int64_t i) {
    std::byte* matrix = reinterpret_cast<std::byte*>(weights.data()) + i % copies * matrix_bytes;
    args.projections[0].weight = TensorView(matrix, type, {outer, inner});
    args.projections[0].weight.layout = layout;
    kernels.matmul(args, pool, scratch);
  };
  for (std::int64_t i = 0; i < std::min<std::int64_t>(copies, 20); ++i) run(i);
  const auto start = std::chrono::steady_clock::now();
  std::int64_t calls = 0;
  double elapsed = 0.0;
  for (; elapsed < options.seconds; ++calls) {
    run(calls);
    elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  ::operator delete (scratch, std::align_val_t{64});
  const double each = elapsed / static_cast<double>(calls);
  fmt::print("{:5} K {:5} M {:5} R {:4} {:10.1f} us {:7.2f} GB/s {:8.1f} GOP/s\n", to_string(type), inner, outer, rows,
             each * 1e6, static_cast<double>(matrix_bytes) / each * 1e-9,
             2e-9 * static_cast<double>(inner * outer * rows) / each);
}

// "576x1536" as {576, 1536}; empty text of an error, as CLI11 wants it, or what is wrong.
std::string parse_shape(const std::string& text, std::int64_t& inner, std::int64_t& outer) {
  int end = 0;
  const bool fits = std::sscanf(text.c_str(), "%9" SCNd64 "x%9" SCNd64 "%n", &inner, &outer, &end) == 2;
  return fits && static_cast<std::size_t>(end) == text.size() && inner > 0 && outer > 0 ? "" : "'" + text + "' is not KxM";
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Matrix products of the CPU kernels");
  std::int64_t inner = 0, outer = 0;
  const auto is_shape = [&](const std::string& text) { return parse_shape(text, inner, outer); };
  app.add_option("--isa", options.isa, "portable, avx2 or avx512");
  app.add_option("--threads", options.threads, "0: all cores")->check(CLI::NonNegativeNumber);
  app.add_option("--type", options.type, "a weight type, or all");
  app.add_option("--rows", options.rows, "rows of activations")->delimiter(',')->check(CLI::PositiveNumber);
  app.add_option("--shape", options.shapes, "KxM")->delimiter(',')->check(is_shape);
  app.add_option("--megabytes", options.megabytes, "size of the buffer of weights")->check(CLI::PositiveNumber);
  app.add_option("--seconds", options.seconds, "for each line");
  app.add_flag("--rows-layout", options.rows_layout, "quantised weights in rows, not in panels");
  if (const auto status = parse_command_line(app, argc, argv)) return *status;
  const cpu::KernelTable* kernels = cpu::find_kernels(options.isa);
  if (kernels == nullptr) {
    fmt::print(stderr, "this machine has no {} kernels\n", options.isa);
    return 1;
  }
  ThreadPool pool(options.threads);
  fmt::print("{} kernels, {} threads\n", kernels->isa, pool.num_threads());
  for (const DType type : kTypes) {
    if (options.type != "all" && options.type != to_string(type)) continue;
    for (const std::string& shape : options.shapes) {
      parse_shape(shape, inner, outer);
      for (const std::int64_t rows : options.rows) measure(*kernels, pool, options, type, inner, outer, rows);
    }
  }
  return 0;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) { return quire::run(argc, argv); }
