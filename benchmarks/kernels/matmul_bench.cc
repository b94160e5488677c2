// Matrix products of the CPU backend: time, weight bandwidth, operations a second, and the share of the bound that the machine
// sets: the longer of reading the weights once at the bandwidth, and multiplying at the peak rate, both measured in the same run.
// Weights are rotated through memory larger than the caches, as in a model. By default the types of the two models of
// scripts/fetch_model.sh, and F16.
//
//   matmul_bench [--isa avx2] [--type Q4_1,F16|all] [--rows 1,8,32,512] [--shape 576x1536] [--megabytes 256] [--seconds 0.2] ...
#include <fmt/format.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "benchmarks/command_line.h"
#include "benchmarks/kernels/kernel_bench.h"

namespace quire {
namespace {

namespace json = boost::json;

constexpr DType kTypes[]{DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0, DType::kQ4_K,
                         DType::kQ5_K, DType::kQ6_K, DType::kF16,  DType::kBF16, DType::kF32};

struct Options {
  std::vector<std::string> types{"Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K", "F16"};
  std::vector<std::int64_t> rows{1, 8, 32, 512};
  std::vector<std::string> shapes{"576x1536", "1536x576", "2048x640", "2048x2048"};  // K x M
  bench::KernelFlags flags{.seconds = 0.2};
};

struct Shape {
  std::int64_t inner = 0, outer = 0;  // K, M
};

// "576x1536"; nothing if it is not of that form.
std::optional<Shape> parse_shape(const std::string& text) {
  Shape shape;
  int end = 0;
  const bool fits = std::sscanf(text.c_str(), "%6" SCNd64 "x%6" SCNd64 "%n", &shape.inner, &shape.outer, &end) == 2;
  if (!fits || static_cast<std::size_t>(end) != text.size() || shape.inner < 1 || shape.outer < 1) return std::nullopt;
  return shape;
}

// Zeros would do for speed in most formats, but random bits keep the processor's shortcuts for zeros out of the picture.
std::vector<std::uint64_t> random_words(std::int64_t bytes) {
  std::mt19937_64 random(1);
  std::vector<std::uint64_t> words(static_cast<std::size_t>(bytes / 8 + 1));
  for (std::uint64_t& w : words) w = random() & 0xbfffbfffbfffbfffu;  // as 16-bit floats: below 2
  return words;
}

// One matrix in so many copies that a round through them leaves no cache warm.
class Matrices {
 public:
  Matrices(Backend& backend, DType type, Shape shape, std::int64_t bytes) {
    std::vector<std::uint64_t> words = random_words(row_bytes(type, shape.inner * shape.outer));
    const TensorView from(words.data(), type, {shape.outer, shape.inner});
    const MatrixForm form = backend.matrix_form(from, MatrixUse::kProduct);
    const std::int64_t copies = std::max<std::int64_t>(1, bytes / form.num_bytes);
    for (std::int64_t i = 0; i < copies; ++i) {
      memory_.push_back(backend.allocate(static_cast<std::size_t>(form.num_bytes)));
      views_.emplace_back(memory_.back().data(), form.dtype, std::initializer_list<std::int64_t>{shape.outer, shape.inner});
      views_.back().layout = form.layout;
      backend.upload_matrix(views_.back(), from);
    }
  }
  const TensorView& operator[](std::int64_t i) const { return views_[static_cast<std::size_t>(i) % views_.size()]; }
  std::int64_t count() const { return static_cast<std::int64_t>(views_.size()); }

 private:
  std::vector<DeviceBuffer> memory_;
  std::vector<TensorView> views_;
};

json::object measure(Backend& backend, const Matrices& matrices, std::int64_t rows, const Options& options,
                     const bench::Machine& machine) {
  const DType type = matrices[0].dtype;
  const std::int64_t inner = matrices[0].dim(1), outer = matrices[0].dim(0);
  std::vector<float> x(static_cast<std::size_t>(rows * inner), 0.7f), out(static_cast<std::size_t>(rows * outer));
  MatmulArgs args;
  args.x = TensorView(x.data(), DType::kF32, {rows, inner});
  args.num_projections = 1;
  args.projections[0].out = TensorView(out.data(), DType::kF32, {rows, outer});
  std::int64_t calls = 0;
  const auto call = [&] {
    args.projections[0].weight = matrices[calls++];
    backend.matmul(args);
  };
  for (std::int64_t i = 0; i < std::min<std::int64_t>(matrices.count(), 20); ++i) call();
  const std::vector<double> times = bench::time_calls(call, options.flags);

  const bench::MachineBounds& bounds = machine.bounds;
  const bench::Work work{.bytes = static_cast<double>(row_bytes(type, inner * outer)),
                         .operations = 2.0 * static_cast<double>(inner * outer * rows),
                         .peak = is_quantized(type) ? bounds.integer_ops_per_s : bounds.float_ops_per_s};
  json::object row{{"type", to_string(type)}, {"k", inner}, {"m", outer}, {"rows", rows}};
  const std::string figures = bench::add_figures(row, times, work, bounds, "gop_per_s");
  fmt::print("{:5} {:>6} {:>6} {:>5} {}", to_string(type), inner, outer, rows, figures);
  return row;
}

// The types with the shapes asked for, without those that no file holds: rows must be whole blocks.
std::vector<std::pair<DType, Shape>> products_of(const std::vector<std::string>& types, const std::vector<std::string>& shapes) {
  std::vector<std::pair<DType, Shape>> products;
  for (const DType type : kTypes) {
    const auto wanted = [&](const std::string& name) { return name == "all" || name == to_string(type); };
    if (std::none_of(types.begin(), types.end(), wanted)) continue;
    for (const std::string& text : shapes) {
      const Shape shape = *parse_shape(text);
      if (shape.inner % block_elements(type) == 0) products.emplace_back(type, shape);
    }
  }
  return products;
}

// Which type or shape that was given nothing would be measured of; empty: none.
std::string without_product(const CLI::App& app, const Options& options) {
  for (const std::string& type : options.types)
    if (app.count("--type") > 0 && products_of({type}, options.shapes).empty())
      return fmt::format("--type {} does not apply: no --shape has rows that are whole blocks of it", type);
  for (const std::string& shape : options.shapes)
    if (app.count("--shape") > 0 && products_of(options.types, {shape}).empty())
      return fmt::format("--shape {} does not apply: its rows are not whole blocks of any --type", shape);
  return "";
}

void run(const Options& options) {
  const bench::Machine machine = bench::measure_machine(options.flags);
  fmt::print("{}\n", bench::describe(machine));
  fmt::print("{:5} {:>6} {:>6} {:>5} {}", "type", "K", "M", "rows", bench::figures_title("GOP/s"));
  CpuBackend backend(machine.kernels, {.num_threads = machine.num_threads});
  json::array rows;
  for (const auto& [type, shape] : products_of(options.types, options.shapes)) {
    const Matrices matrices(backend, type, shape, options.flags.megabytes * 1'000'000);
    for (const std::int64_t count : options.rows) rows.push_back(measure(backend, matrices, count, options, machine));
  }
  bench::emit_kernel_report("matmul", options.flags, machine, {}, std::move(rows));
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  quire::Options options;
  CLI::App app("Matrix products of the CPU backend.");
  const auto is_shape = [](const std::string& text) { return quire::parse_shape(text) ? "" : "'" + text + "' is not KxM"; };
  std::vector<std::string> type_names{"all"};
  for (const quire::DType type : quire::kTypes) type_names.emplace_back(to_string(type));
  quire::bench::add_list(app, "--type", options.types, "weight types, or all", CLI::IsMember(type_names));
  quire::bench::add_list(app, "--rows", options.rows, "rows of activations", CLI::Range(1, 65536));
  quire::bench::add_list(app, "--shape", options.shapes, "KxM", is_shape);
  quire::bench::add_kernel_flags(app, options.flags, "weights");
  if (const auto status = quire::bench::parse_flags(app, argc, argv)) return *status;
  return quire::bench::run_guarded("matmul_bench", quire::without_product(app, options), [&] { quire::run(options); });
}
