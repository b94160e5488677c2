// What each kernel moves, as a table: counted by the emulator's hooks build and held against the one in docs/kernels.md. A row
// that got worse is a regression, one that got better is news; QUIRE_WRITE_TABLES=1 puts what was counted into the file.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>

#include "fmt/format.h"
#include "kernels/cuda/attention_params.h"
#include "kernels/cuda/decode_attention.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/prefill_attention.cuh"
#include "kernels/cuda/sample_rows.h"
#include "tests/kernels/cuda/attention_problem.h"
#include "tests/kernels/cuda/pool_layer.h"

namespace quire::testing {
namespace {

constexpr char kDoc[] = QUIRE_SOURCE_DIR "/docs/kernels.md";
constexpr std::int64_t kSampledTokens = 16384;
constexpr char kBegin[] = "<!-- traffic table: begin -->\n", kEnd[] = "<!-- traffic table: end -->";

std::string ratio(std::int64_t seen, std::int64_t least) {
  return least == 0 ? "" : fmt::format("{:.2f}", static_cast<double>(seen) / static_cast<double>(least));
}

class TrafficTable : public ::testing::Test {
 protected:
  // `read` and `written`: the fewest bytes that the op can do with.
  void add(const std::string& kernel, std::int64_t read, std::int64_t written, const std::function<void()>& run, int threads = 0,
           int bytes_in_flight = 0) {
    row(kernel, count(run), read, written, "", threads, 0, bytes_in_flight);
  }

  template <typename Config>
  void add_attention(AttentionKernel kernel, const char* name, const std::vector<PagedSequence>& sequences, int row_tile,
                     int bytes_in_flight) {
    const AttentionCase attention{
        .sequences = sequences, .num_heads = 8, .num_kv_heads = 2, .head_size = Config::kHeadSize, .dtype = DType::kBF16};
    DeviceAttention device(attention);
    const std::size_t pool_bytes = device.keys().size() * 2;
    const simt::ReadWatch keys(device.keys().data(), pool_bytes), values(device.values().data(), pool_bytes);
    const simt::Statistics seen = count([&] { device.run({.kernel = kernel, .num_sms = 1, .row_tile = row_tile}); });
    std::int64_t live = 0, reads = 0;
    for (const PagedSequence& s : sequences) live += std::int64_t{4} * s.kv_len * attention.num_kv_heads * attention.head_size;
    for (std::size_t i = 0; i < pool_bytes; ++i) reads += keys.num_reads()[i] + values.num_reads()[i];
    std::int64_t q_bytes = 0;
    for (const PagedSequence& s : sequences) q_bytes += std::int64_t{2} * s.num_new * attention.num_heads * attention.head_size;
    row(name, seen, live + q_bytes, q_bytes, ratio(reads, live), Config::kThreads, Config::kSharedBytes, bytes_in_flight);
  }
  template <int kHeadSize>
  void add_decode() {
    using Config = cuda::DecodeConfig<kHeadSize>;
    add_attention<Config>(AttentionKernel::kDecode,
                          fmt::format("decode_attention_kernel<BFloat16, DecodeConfig<{}> >", kHeadSize).c_str(),
                          {{1, 1, 300}, {2, 1, 77}}, 0, (Config::kStages - 1) * 2 * Config::kPartBytes * Config::kWarps);
  }
  template <int kHeadSize, int kRowTiles>
  void add_prefill() {
    using Config = cuda::PrefillConfig<kHeadSize, kRowTiles>;
    // As many rows of four heads a group as fill one tile.
    const int rows = Config::kRows / 4;
    add_attention<Config>(AttentionKernel::kPrefill,
                          fmt::format("prefill_attention_kernel<BFloat16, PrefillConfig<{}, {}> >", kHeadSize, kRowTiles).c_str(),
                          {{1, rows, 300}}, Config::kRows, (Config::kStages - 1) * 2 * Config::kTileBytes);
  }
  // One new token whose positions were split in four parts.
  void add_combine() {
    constexpr int kParts = 4, kHeads = 8, kKvHeads = 2, kSize = 128;
    constexpr std::int64_t kPartialRows = kParts * kHeads, kOutBytes = std::int64_t{kHeads} * kSize * 2;
    const DeviceTensor partial_out(DType::kF32, {kPartialRows, kSize}, noises(kPartialRows * kSize, 1)),
        partial_lse(DType::kF32, {kPartialRows}, noises(kPartialRows, 2)), out(DType::kBF16, {1, kHeads, kSize});
    const DeviceTensor item({5}, std::vector<std::int32_t>{0, 0, kHeads / kKvHeads, 0, kParts}),
        q_indptr({2}, std::vector<std::int32_t>{0, 1}), kv_lens({1}, std::vector<std::int32_t>{300});
    cuda::AttentionParams params;
    params.out = out.view().data;
    params.out_stride = out.view().outer_stride;
    params.q_indptr = q_indptr.view().as<std::int32_t>();
    params.kv_lens = kv_lens.view().as<std::int32_t>();
    params.page_indptr = q_indptr.view().as<std::int32_t>();  // not followed
    params.combines = item.view().as<cuda::CombineItem>();
    params.partial_out = partial_out.view().as<float>();
    params.partial_lse = partial_lse.view().as<float>();
    params.head_size = kSize;
    params.num_kv_heads = kKvHeads;
    params.group = kHeads / kKvHeads;
    add("combine_attention_kernel<BFloat16>", kPartialRows * (kSize + 1) * 4, kOutBytes,
        [&] { cuda::launch_combine_bf16(params, {.num_combines = 1, .row_tile = cuda::kDecodeRows}, nullptr); });
  }
  // A row of logits; one that is changed or drawn from is copied to scratch.
  void add_sample(const std::string& how, const SampleRow& row) {
    constexpr std::int64_t kSize = kSampledTokens;
    std::vector<std::byte> packed;
    cuda::pack_sample_rows(&row, 1, kSize, packed);
    const simt::DeviceBuffer<std::byte> rows(packed);
    const simt::DeviceBuffer<SampleResult> results(1);
    const DeviceTensor logits(DType::kF32, {1, kSize}, noises(kSize, 3, 4.0f)), scratch(DType::kF32, {1, kSize});
    const bool is_copied = row.temperature > 0.0f || row.mask != nullptr;
    add("sample_kernel, " + how, 4 * kSize, sizeof(SampleResult) + (is_copied ? 4 * kSize : 0), [&] {
      cuda::sample({logits, rows.data(), scratch.view().as<float>(), results.data()}, nullptr);
    });
  }
  const std::string& table() const { return table_; }

 private:
  simt::Statistics count(const std::function<void()>& run) const {
    const simt::ScopedOptions scope({.schedule = simt::Schedule::kAscending, .count_traffic = true});
    (void)simt::take_statistics();
    run();
    return simt::take_statistics();
  }
  void row(const std::string& kernel, const simt::Statistics& seen, std::int64_t read, std::int64_t written,
           const std::string& kv_reads, int threads, int shared_bytes, int bytes_in_flight) {
    const auto text = [](std::int64_t x) { return x == 0 ? std::string() : std::to_string(x); };
    const std::int64_t read_sectors = seen.global_loads.num_sectors + seen.copy_reads.num_sectors;
    const std::int64_t requests = seen.global_loads.num_requests + seen.copy_reads.num_requests;
    const simt::SharedTraffic* shared[] = {&seen.shared_loads, &seen.shared_stores, &seen.copy_writes, &seen.matrix_loads};
    std::int64_t phases = 0, ideal = 0;
    for (const simt::SharedTraffic* traffic : shared) phases += traffic->num_phases, ideal += traffic->num_ideal_phases;
    table_ += fmt::format("| `{}` | {} | {} | {} | {:.1f} | {} | {} | {} | {} |\n", kernel, kv_reads,
                          ratio(32 * read_sectors, read), ratio(32 * seen.global_stores.num_sectors, written),
                          static_cast<double>(read_sectors) / static_cast<double>(requests),
                          ideal == 0 ? "" : fmt::format("{} of {}", phases - ideal, ideal), text(threads), text(shared_bytes),
                          text(bytes_in_flight));
  }

  std::string table_ =
      "| kernel | K, V read | read | written | sectors per request | bank conflicts | threads | dynamic shared bytes | in flight "
      "per block "
      "|\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
};

DeviceTensor bf16(Dims dims, unsigned seed) {
  std::int64_t size = 1;
  for (const std::int64_t n : dims) size *= n;
  return {DType::kBF16, dims, noises(static_cast<std::size_t>(size), seed)};
}

TEST_F(TrafficTable, IsTheOneInTheDocument) {
  add_decode<64>();
  add_decode<80>();
  add_decode<96>();
  add_decode<128>();
  add_decode<256>();
  add_prefill<64, 1>();
  add_prefill<64, 2>();
  add_prefill<80, 1>();
  add_prefill<96, 1>();
  add_prefill<128, 1>();
  add_prefill<128, 2>();
  add_prefill<256, 1>();

  add_combine();

  constexpr std::int64_t kRows = 4, kWidth = 2048, kBytes = kRows * kWidth * 2;
  const DeviceTensor x = bf16({kRows, kWidth}, 1), y = bf16({kRows, kWidth}, 2), out(DType::kBF16, {kRows, kWidth});
  const DeviceTensor weight(DType::kF32, {kWidth}, noises(kWidth, 3)), ids({kRows}, std::vector<std::int32_t>{2, 0, 3, 1});
  add("rms_norm_kernel<BFloat16, false>", kBytes + kRows * kWidth * 4, kBytes, [&] {
    cuda::rms_norm({x, weight, out, 1e-5f}, nullptr);
  });
  add("rms_norm_kernel<BFloat16, true>", 2 * kBytes + kRows * kWidth * 4, 2 * kBytes, [&] {
    cuda::add_rms_norm({x, y, weight, out, 1e-5f}, nullptr);
  });
  add("add_kernel<BFloat16>", 2 * kBytes, kBytes, [&] { cuda::add({x, y}, nullptr); });
  add("gated_activation_kernel<BFloat16>", 2 * kBytes, kBytes, [&] {
    cuda::gated_activation({x, y, out, Activation::kSilu}, nullptr);
  });
  add("embed_kernel<BFloat16, BFloat16>", kBytes + 4 * kRows, kBytes, [&] { cuda::embed({x, ids, out, 2.0f}, nullptr); });
  const DeviceTensor floats(DType::kF32, {kRows, kWidth}, noises(kRows * kWidth, 1));
  add("embed_kernel<float, BFloat16>", 2 * kBytes + 4 * kRows, kBytes, [&] { cuda::embed({floats, ids, out, 2.0f}, nullptr); });
  add("gather_rows_kernel", kBytes + 4 * kRows, kBytes, [&] { cuda::gather_rows({x, ids, out}, nullptr); });
  const DeviceTensor logits(DType::kF32, {kRows, kWidth}, noises(kRows * kWidth, 4));
  add("softcap_kernel", 2 * kBytes, 2 * kBytes, [&] { cuda::softcap({logits, 30.0f}, nullptr); });

  add_sample("greedy", {.temperature = 0.0f});
  const std::vector<std::uint32_t> mask(kSampledTokens / 32, 0xffff0000u);
  add_sample("mask", {.temperature = 0.0f, .mask = mask.data()});
  add_sample("temperature", {.temperature = 0.8f});
  add_sample("top-p", {.temperature = 0.8f, .top_p = 0.9f});

  constexpr int kTokens = 4, kHeads = 8, kKvHeads = 2, kSize = 128;
  constexpr std::int64_t kQBytes = kTokens * kHeads * kSize * 2, kKvBytes = 2 * kTokens * kKvHeads * kSize * 2;
  constexpr std::int64_t kTableBytes = kTokens * kSize * 4;
  const DeviceTensor q = bf16({kTokens, kHeads, kSize}, 1), k = bf16({kTokens, kKvHeads, kSize}, 2),
                     v = bf16({kTokens, kKvHeads, kSize}, 3);
  const DeviceTensor cos_sin(DType::kF32, {kTokens, kSize / 2, 2}, noises(kTokens * kSize, 4));
  const DeviceTensor slots({kTokens}, std::vector<std::int64_t>{5, 0, 9, 2});
  const PoolLayer pool(DType::kBF16, 3, 4, kKvHeads, kSize);
  const DeviceTensor positions({kTokens}, std::vector<std::int32_t>{7, 0, 5, 900}),
      frequencies(DType::kF32, {kSize / 2}, noises(kSize / 2, 5));
  add("rope_table_kernel", kTokens * (2 * kSize + 4), kTableBytes, [&] {
    cuda::rope_table({positions, frequencies, 1.0f, cos_sin}, nullptr);
  });
  add("rope_kernel<BFloat16>", kQBytes + kTableBytes, kQBytes, [&] { cuda::rope({q, cos_sin}, nullptr); });
  add("append_kv_kernel<BFloat16>", kKvBytes + 8 * kTokens, kKvBytes, [&] {
    cuda::append_kv({k, v, slots, pool.layer()}, nullptr);
  });
  add("rope_append_kv_kernel<BFloat16>", kQBytes + kKvBytes + kTableBytes + 8 * kTokens, kQBytes + kKvBytes, [&] {
    cuda::rope_append_kv({q, k, v, cos_sin, slots, pool.layer()}, nullptr);
  });

  for (const DType type : {DType::kQ4_K, DType::kQ6_K}) {  // those of most files
    constexpr std::int64_t kOuter = 32, kInner = 1024, kDenseBytes = kOuter * kInner * 2;
    const std::int64_t bytes = kOuter * row_bytes(type, kInner);
    const DeviceTensor blocks(type, {kOuter, kInner}, std::vector<std::byte>(static_cast<std::size_t>(bytes), std::byte{1})),
        dense(DType::kBF16, {kOuter, kInner});
    add("dequantize_kernel<BFloat16>, " + std::string(to_string(type)), bytes, kDenseBytes,
        [&] { cuda::dequantize(blocks, dense, nullptr); });
  }
  for (const DType type : {DType::kQ4_0, DType::kQ4_1, DType::kQ4_K, DType::kQ8_0}) {
    constexpr std::int64_t kOuter = 32, kInner = 1024;
    const std::string name(to_string(type));
    const std::int64_t bytes = kOuter * row_bytes(type, kInner), dense_bytes = kOuter * kInner * 2;
    const DeviceTensor blocks(type, {kOuter, kInner}, std::vector<std::byte>(static_cast<std::size_t>(bytes), std::byte{1}));
    const DeviceTensor packed(type, {kOuter, kInner}), dense(DType::kBF16, {kOuter, kInner}), in = bf16({8, kInner}, 5),
                                                                                              product(DType::kF32, {8, kOuter});
    add("pack_weight_kernel<" + name + ">", bytes, bytes, [&] { cuda::pack_weight(blocks, packed, nullptr); });
    add("unpack_weight_kernel<BFloat16, " + name + ">", bytes, dense_bytes, [&] { cuda::unpack_weight(packed, dense, nullptr); });
    add(
        "matmul_quantized_kernel<BFloat16, " + name + ">", bytes + in.view().num_bytes() * (kOuter / 16), 4 * 8 * kOuter,
        [&] {
          cuda::matmul_quantized({.x = in, .num_projections = 1, .projections = {{packed, {}, product}}}, nullptr);
        },
        256, static_cast<int>(bytes / 32 * 8 * (type == DType::kQ8_0 ? 1 : 2)));  // tiles [16, 64] ahead of eight warps
  }

  std::ifstream file(kDoc);
  std::stringstream whole;
  whole << file.rdbuf();
  std::string text = whole.str();
  const std::size_t begin = text.find(kBegin) + sizeof kBegin - 1, end = text.find(kEnd);
  ASSERT_LT(end, text.size()) << kDoc << " has no place for the table";
  const char* const write = std::getenv("QUIRE_WRITE_TABLES");
  if (write != nullptr && *write == '1') {
    std::ofstream(kDoc) << text.substr(0, begin) + table() + text.substr(end);
    return;
  }
  EXPECT_EQ(text.substr(begin, end - begin), table())
      << "kernels move other amounts than docs/kernels.md says; if that is meant: QUIRE_WRITE_TABLES=1 and this test";
}

}  // namespace
}  // namespace quire::testing
