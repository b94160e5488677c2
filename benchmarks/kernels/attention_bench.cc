// The attention kernels on a GPU: microseconds, GB/s, TFLOP/s, the share of the copy bandwidth measured in the same run, and what
// the cost model predicts. Shapes are those of docs/benchmarks.md: decode of 32 x 4K, 64 x 1K, 1 x 32K and mixed lengths, pages
// of 16 and of 256 in order (all but contiguous), prefill of 1K to 16K. Inputs are random; calls rotate through copies of the
// cache that no GPU's L2 holds. attention_bench [--device 0] [--dtype bf16|f16] [--repeat 20] [--small] [--json FILE]
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/command_line.h"
#include "benchmarks/report.h"
#include "core/check.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/split_plan.h"

namespace quire {
namespace {

struct Options {
  int device = 0;
  std::string dtype = "bf16";
  int repeats = 20;
  bool small = false;  // contexts by a hundredth: to see that everything runs
  std::string json;
};

void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) fail(ErrorCode::kDevice, "{}: {}", call, cudaGetErrorString(status));
}

class DeviceArray {
 public:
  explicit DeviceArray(std::size_t bytes) : bytes_(bytes) {
    check(cudaMalloc(&data_, std::max<std::size_t>(bytes, 1)), "cudaMalloc");
  }
  template <typename T>
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size() * sizeof(T)) {
    check(cudaMemcpyAsync(data_, values.data(), bytes_, cudaMemcpyHostToDevice, nullptr), "cudaMemcpyAsync");
  }
  DeviceArray(const DeviceArray&) = delete;
  ~DeviceArray() { (void)cudaFree(data_); }

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::size_t bytes() const { return bytes_; }
  // Random two-byte floats of magnitude 1/2 to 2, both signs.
  void fill(DType type) {
    std::mt19937 random(1);
    std::vector<std::uint16_t> bits(std::min<std::size_t>(bytes_ / 2, std::size_t{1} << 22));
    for (std::uint16_t& b : bits) {
      const auto r = static_cast<std::uint32_t>(random());
      b = static_cast<std::uint16_t>(type == DType::kF16 ? (r & 0x83ff) | (0x3800 + (r >> 16 & 0x400))
                                                         : (r & 0x807f) | (0x3f00 + (r >> 16 & 0x80)));
    }
    for (std::size_t done = 0; done < bytes_; done += bits.size() * 2) {
      check(
          cudaMemcpyAsync(data() + done, bits.data(), std::min(bits.size() * 2, bytes_ - done), cudaMemcpyHostToDevice, nullptr),
          "cudaMemcpyAsync");
    }
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

// Seconds of one call, the median of `repeats`, each timed by events around it.
template <typename Call>
double seconds_of(cudaStream_t stream, int repeats, const Call& call) {
  cudaEvent_t begin = nullptr, end = nullptr;
  check(cudaEventCreate(&begin), "cudaEventCreate");
  check(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<double> times;
  for (int i = -3; i < repeats; ++i) {  // three to warm up
    check(cudaEventRecord(begin, stream), "cudaEventRecord");
    call(i + 3);
    check(cudaEventRecord(end, stream), "cudaEventRecord");
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    float milliseconds = 0.0f;
    check(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
    if (i >= 0) times.push_back(milliseconds * 1e-3);
  }
  (void)cudaEventDestroy(begin);
  (void)cudaEventDestroy(end);
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return times[static_cast<std::size_t>(repeats / 2)];
}

// Bytes read and written a second.
double copy_bandwidth(cudaStream_t stream, const Options& options) {
  const std::size_t bytes = options.small ? std::size_t{1} << 20 : std::size_t{1} << 30;
  const DeviceArray from(bytes), to(bytes);
  const double seconds = seconds_of(stream, options.repeats, [&](int) {
    check(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
  });
  return 2.0 * static_cast<double>(bytes) / seconds;
}

struct Shape {
  std::string name;
  bool decode = true;
  std::vector<std::int32_t> kv_lens;
  int num_heads = 32, num_kv_heads = 8, head_size = 128;
  int block_size = 16;
  bool in_order = false;  // pages one behind the other
};

std::vector<Shape> all_shapes(const Options& options) {
  const auto tokens = [&](int count) { return options.small ? std::max(count / 100, 1) : count; };
  const auto same = [&](int batch, int count) {
    return std::vector<std::int32_t>(static_cast<std::size_t>(options.small ? 2 : batch), tokens(count));
  };
  std::vector<std::int32_t> mixed;
  for (int count = 128; count <= 32768; count *= 2) mixed.insert(mixed.end(), 4, tokens(count));
  std::vector<Shape> shapes = {
      {.name = "decode 32 x 4K", .kv_lens = same(32, 4096)},
      {.name = "decode 32 x 4K, contiguous", .kv_lens = same(32, 4096), .block_size = 256, .in_order = true},
      {.name = "decode 64 x 1K", .kv_lens = same(64, 1024)},
      {.name = "decode 1 x 32K", .kv_lens = {tokens(32768)}},
      {.name = "decode mixed 128 to 32K", .kv_lens = mixed},
  };
  for (const int count : {1024, 2048, 4096, 8192, 16384}) {
    shapes.push_back({.name = fmt::format("prefill {}K", count / 1024), .decode = false, .kv_lens = {tokens(count)}});
  }
  return shapes;
}

// One shape with all its arrays on the device.
class Problem {
 public:
  Problem(const Shape& shape, DType type, int num_sms) : shape_(shape), type_(type) {
    std::vector<std::int32_t> q_indptr{0}, page_indptr{0};
    for (const std::int32_t length : shape.kv_lens) {
      q_indptr.push_back(q_indptr.back() + (shape.decode ? 1 : length));
      page_indptr.push_back(page_indptr.back() + (length + shape.block_size - 1) / shape.block_size);
      kv_tokens_ += length;
    }
    num_rows_ = q_indptr.back();
    std::vector<std::int32_t> pages(static_cast<std::size_t>(page_indptr.back()));
    std::iota(pages.begin(), pages.end(), 0);
    if (!shape.in_order) std::shuffle(pages.begin(), pages.end(), std::mt19937(7));

    const std::int64_t half = std::int64_t{shape.num_kv_heads} * shape.block_size * shape.head_size;  // keys of a block
    layer_elements_ = static_cast<std::int64_t>(pages.size()) * 2 * half;
    constexpr std::int64_t kMoreThanL2 = 512 << 20;
    copies_ = shape.decode ? std::max<std::int64_t>(1, kMoreThanL2 / (layer_elements_ * 2)) : 1;
    pool_ = std::make_unique<DeviceArray>(static_cast<std::size_t>(copies_ * layer_elements_ * 2));
    q_ = std::make_unique<DeviceArray>(static_cast<std::size_t>(num_rows_ * shape.num_heads * shape.head_size * 2));
    out_ = std::make_unique<DeviceArray>(q_->bytes());
    pool_->fill(type);
    q_->fill(type);

    const cuda::SplitShape split{.num_heads = shape.num_heads,
                                 .num_kv_heads = shape.num_kv_heads,
                                 .head_size = shape.head_size,
                                 .num_sms = num_sms,
                                 .workspace_bytes = std::int64_t{1} << 28};
    plan_ = shape.decode ? cuda::plan_decode(split, q_indptr, shape.kv_lens) : cuda::plan_prefill(split, q_indptr, shape.kv_lens);
    workspace_ =
        std::make_unique<DeviceArray>(static_cast<std::size_t>(cuda::partial_bytes(plan_.num_partial_rows, shape.head_size)));
    add_list(q_indptr);
    add_list(shape.kv_lens);
    add_list(page_indptr);
    add_list(pages);
    add_list(plan_.items);
    add_list(plan_.combines);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  void run(std::int64_t call, cudaStream_t stream) const {
    auto* keys = reinterpret_cast<std::uint16_t*>(pool_->data()) + call % copies_ * layer_elements_;
    const std::int64_t half = std::int64_t{shape_.num_kv_heads} * shape_.block_size * shape_.head_size;
    const auto list = [&](std::size_t i, std::int64_t count) { return TensorView(lists_[i]->data(), DType::kI32, {count}); };
    const auto num_sequences = static_cast<std::int64_t>(shape_.kv_lens.size());
    const AttentionArgs args{
        .q = TensorView(q_->data(), type_, {num_rows_, shape_.num_heads, shape_.head_size}),
        .out = TensorView(out_->data(), type_, {num_rows_, shape_.num_heads, shape_.head_size}),
        .kv = {keys, keys + half, type_, 2 * half, shape_.block_size, shape_.num_kv_heads, shape_.head_size},
        .q_indptr = list(0, num_sequences + 1),
        .kv_lens = list(1, num_sequences),
        .page_indptr = list(2, num_sequences + 1),
        .page_indices = list(3, static_cast<std::int64_t>(lists_[3]->bytes() / 4)),
        .scale = 0.0884f,
        .window = 0,
        .softcap = 0.0f,
        .work = {},
    };
    cuda::AttentionPlan plan;
    const auto ints = [](std::size_t bytes) { return static_cast<std::int64_t>(bytes / sizeof(std::int32_t)); };
    const auto num_items = static_cast<std::int64_t>(plan_.items.size());
    const auto num_combines = static_cast<std::int64_t>(plan_.combines.size());
    plan.items = TensorView(lists_[4]->data(), DType::kI32, {num_items, ints(sizeof(cuda::WorkItem))});
    if (num_combines > 0) {
      plan.combines = TensorView(lists_[5]->data(), DType::kI32, {num_combines, ints(sizeof(cuda::CombineItem))});
    }
    plan.waves = plan_.waves;
    plan.row_tile = plan_.row_tile;
    plan.num_partial_rows = plan_.num_partial_rows;
    plan.workspace = workspace_->data();
    shape_.decode ? cuda::decode_attention(args, plan, stream) : cuda::prefill_attention(args, plan, stream);
  }

  // What must move: keys and values once a group, queries and outputs once.
  double bytes() const {
    return 2.0 *
           (2.0 * static_cast<double>(kv_tokens_) * shape_.num_kv_heads +
            2.0 * static_cast<double>(num_rows_) * shape_.num_heads) *
           shape_.head_size;
  }
  double operations() const {
    double pairs = 0.0;
    for (const std::int32_t length : shape_.kv_lens) pairs += shape_.decode ? length : 0.5 * length * (length + 1.0);
    return 4.0 * pairs * shape_.num_heads * shape_.head_size;
  }

 private:
  template <typename T>
  void add_list(const std::vector<T>& values) {
    lists_.push_back(std::make_unique<DeviceArray>(values));
  }

  Shape shape_;
  DType type_;
  std::int64_t num_rows_ = 0, kv_tokens_ = 0, layer_elements_ = 0, copies_ = 1;
  std::unique_ptr<DeviceArray> pool_, q_, out_, workspace_;
  std::vector<std::unique_ptr<DeviceArray>> lists_;
  cuda::SplitPlan plan_;
};

// Decode: 6 us and the bytes at 0.97 of the copy bandwidth (87 % of an H200's peak, where a copy reaches 90 %). Prefill: 4 us and
// the operations at the rate of FlashAttention-2 on an H100 (Shah et al. 2024, arXiv:2407.08608, figure 5), for these are kernels
// of its kind; compared on other GPUs it is only a yardstick.
double predicted_seconds(const Shape& shape, const Problem& problem, double bandwidth) {
  constexpr double kDecodeShare = 0.97, kPrefillRate = 320e12;
  return shape.decode ? 6e-6 + problem.bytes() / (kDecodeShare * bandwidth) : 4e-6 + problem.operations() / kPrefillRate;
}

void run(const Options& options) {
  check(cudaSetDevice(options.device), "cudaSetDevice");
  int num_sms = 0;
  check(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, options.device), "cudaDeviceGetAttribute");
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  const DType type = options.dtype == "f16" ? DType::kF16 : DType::kBF16;
  const double bandwidth = copy_bandwidth(stream, options);
  fmt::print("copy within the device: {:.0f} GB/s; {} SMs, {}\n", bandwidth * 1e-9, num_sms, options.dtype);
  fmt::print("{:<28}{:>10}{:>10}{:>10}{:>12}{:>14}\n", "", "us", "GB/s", "TFLOP/s", "of copy", "predicted us");
  boost::json::array rows;
  for (const Shape& shape : all_shapes(options)) {
    const Problem problem(shape, type, num_sms);
    const double seconds = seconds_of(stream, options.repeats, [&](int call) { problem.run(call, stream); });
    const double rate = problem.bytes() / seconds, flops = problem.operations() / seconds;
    const double predicted = predicted_seconds(shape, problem, bandwidth);
    fmt::print("{:<28}{:>10.1f}{:>10.0f}{:>10.1f}{:>11.0f}%{:>14.1f}\n", shape.name, seconds * 1e6, rate * 1e-9, flops * 1e-12,
               100.0 * rate / bandwidth, predicted * 1e6);
    rows.push_back({{"shape", shape.name},
                    {"block_size", shape.block_size},
                    {"us", seconds * 1e6},
                    {"gb_per_s", rate * 1e-9},
                    {"tflop_per_s", flops * 1e-12},
                    {"share_of_copy", rate / bandwidth},
                    {"predicted_us", predicted * 1e6}});
  }
  boost::json::object report = bench::report_header("attention");
  report["device"] = options.device;
  report["dtype"] = options.dtype;
  report["repeats"] = options.repeats;
  report["small"] = options.small;
  report["copy_gb_per_s"] = bandwidth * 1e-9;
  report["num_sms"] = num_sms;
  report["rows"] = std::move(rows);
  bench::emit(report, options.json);
  (void)cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  quire::Options options;
  CLI::App app("The attention kernels on a GPU.");
  app.add_option("--device", options.device, "CUDA device")->check(CLI::Range(0, 1024));
  app.add_option("--dtype", options.dtype, "bf16 or f16")->check(CLI::IsMember({"bf16", "f16"}));
  app.add_option("--repeat,--repeats", options.repeats, "timed calls of each shape")->check(CLI::Range(1, 10000));
  app.add_flag("--small", options.small, "contexts by a hundredth, to see that everything runs");
  quire::bench::add_json_flag(app, options.json);
  if (const auto status = quire::bench::parse_flags(app, argc, argv)) return *status;
  return quire::bench::run_guarded("attention_bench", [&] { quire::run(options); });
}
