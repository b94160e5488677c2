// Large matrices, which are filled in by pieces: what of the file is in memory meanwhile, and that panels do not show the cuts.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "core/parallel.h"
#include "kernels/cpu/kernels.h"
#include "model/mapped_file.h"
#include "model/weights.h"
#include "tests/support/file_writers.h"
#include "tests/support/memory_backend.h"
#include "tests/support/tiny_config.h"

namespace quire {
namespace {

using test::TensorBytes;

constexpr std::int64_t kStretchBytes = 8 << 20;  // what of a file is filled in together
constexpr std::int64_t kPieceRows = 256;         // what matrices are cut into multiples of

// A llama of one layer whose matrices all have one type. The bytes of its blocks are random.
struct LargeModel {
  DType type = DType::kQ8_0;
  int hidden_size = 256;
  int mlp_size = 256;
  int vocab_size = 320;
};

TensorBytes tensor(const std::string& name, DType type, const std::vector<std::int64_t>& shape) {
  std::int64_t elements = 1;
  for (const std::int64_t size : shape) elements *= size;
  TensorBytes tensor{name, type, shape, test::Bytes(static_cast<std::size_t>(row_bytes(type, elements)))};
  if (!is_quantized(type)) return tensor;
  std::mt19937_64 random(std::hash<std::string>()(name));
  for (std::size_t i = 0; i < tensor.data.size(); i += sizeof(std::uint64_t)) {
    const std::uint64_t word = random();
    std::memcpy(&tensor.data[i], &word, std::min(sizeof(word), tensor.data.size() - i));
  }
  return tensor;
}

std::vector<TensorBytes> tensors_of(const LargeModel& model) {
  constexpr std::int64_t kHeads = 4 * 64, kKvHeads = 2 * 64;
  const std::int64_t hidden = model.hidden_size, mlp = model.mlp_size;
  return {tensor("token_embd.weight", model.type, {model.vocab_size, hidden}),
          tensor("blk.0.attn_norm.weight", DType::kF32, {hidden}),
          tensor("blk.0.attn_q.weight", model.type, {kHeads, hidden}),
          tensor("blk.0.attn_k.weight", model.type, {kKvHeads, hidden}),
          tensor("blk.0.attn_v.weight", model.type, {kKvHeads, hidden}),
          tensor("blk.0.attn_output.weight", model.type, {hidden, kHeads}),
          tensor("blk.0.ffn_norm.weight", DType::kF32, {hidden}),
          tensor("blk.0.ffn_gate.weight", model.type, {mlp, hidden}),
          tensor("blk.0.ffn_up.weight", model.type, {mlp, hidden}),
          tensor("blk.0.ffn_down.weight", model.type, {hidden, mlp}),
          tensor("output_norm.weight", DType::kF32, {hidden})};
}

// The file of a model, gone at the end of a test.
class LargeFile {
 public:
  LargeFile(const LargeModel& model, const std::vector<TensorBytes>& tensors) {
    test::TinyModelSpec spec;
    spec.num_layers = 1;
    spec.hidden_size = model.hidden_size;
    spec.mlp_size = model.mlp_size;
    spec.vocab_size = model.vocab_size;
    spec.num_heads = 4;
    spec.num_kv_heads = 2;
    spec.head_size = 64;
    test::GgufWriter writer;
    test::add_gguf_config(spec, writer);
    for (const TensorBytes& t : tensors) writer.add_tensor(t);
    test::write_file(path_, writer.finish());
  }
  ~LargeFile() { std::filesystem::remove(path_); }
  LargeFile(const LargeFile&) = delete;
  LargeFile& operator=(const LargeFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_ = ::testing::TempDir() + "loading_test_" + std::to_string(::getpid()) + ".gguf";  // tests run side by side
};

// What of a mapped file this process has in memory, by its name in /proc/self/smaps. Nothing that others do changes it; the
// system maps more than is touched, up to a large page.
std::int64_t resident_bytes(const std::string& path) {
  std::ifstream smaps("/proc/self/smaps");
  std::int64_t sum = 0;
  bool is_of_file = false;
  for (std::string line; std::getline(smaps, line);) {
    const bool is_field = std::isupper(static_cast<unsigned char>(line[0])) != 0;  // else the range of a mapping, and its file
    if (!is_field) is_of_file = line.ends_with(path);
    if (is_field && is_of_file && line.starts_with("Rss:")) sum += std::stoll(line.substr(4)) * 1024;
  }
  return sum;
}

// The resident bytes of a file of which every page was read.
std::int64_t resident_bytes_after_reading(const std::string& path) {
  const auto file = MappedFile::open(path);
  [[maybe_unused]] volatile std::byte last{};
  for (std::size_t i = 0; i < file->bytes().size(); i += 1024) last = file->bytes()[i];
  return resident_bytes(path);
}

TEST(Loading, LeavesNoMoreOfTheFileInMemoryThanAStretch) {
  const LargeModel large{.vocab_size = 160'000};
  const LargeFile file(large, tensors_of(large));
  const std::string& path = file.path();
  const auto file_bytes = static_cast<std::int64_t>(std::filesystem::file_size(path));
  ASSERT_GT(file_bytes, 5 * kStretchBytes);
  if (resident_bytes_after_reading(path) < file_bytes) GTEST_SKIP() << "this system does not say what of a file is in memory";
  ASSERT_EQ(resident_bytes(path), 0);

  test::MemoryBackend device(false);
  std::int64_t peak = 0;
  device.after_upload([&] { peak = std::max(peak, resident_bytes(path)); });
  const LoadedModel model = load_model(path, device);
  EXPECT_GT(peak, kStretchBytes / 2);
  EXPECT_LT(peak, 2 * kStretchBytes);
  EXPECT_LT(resident_bytes(path), kStretchBytes / 2) << "once it is loaded";
}

// As many as a stretch holds, in multiples of kPieceRows, which is the least.
std::int64_t rows_of_a_piece(DType type, std::int64_t columns) {
  return std::max(kStretchBytes / row_bytes(type, columns) / kPieceRows, std::int64_t{1}) * kPieceRows;
}

class LoadingInPieces : public ::testing::TestWithParam<LargeModel> {};

TEST_P(LoadingInPieces, MakesThePanelsOfWholeMatrices) {
  const std::vector<TensorBytes> tensors = tensors_of(GetParam());
  CpuBackend backend(BackendOptions{.num_threads = 2});
  const LargeFile file(GetParam(), tensors);
  const LoadedModel model = load_model(file.path(), backend);
  const LayerWeights& layer = model.weights.layers.at(0);
  const std::array<const TensorView*, 11> loaded = {&model.weights.embedding,
                                                    nullptr,
                                                    &layer.q,
                                                    &layer.k,
                                                    &layer.v,
                                                    &layer.o,
                                                    nullptr,
                                                    &layer.gate,
                                                    &layer.up,
                                                    &layer.down,
                                                    nullptr};
  ThreadPool pool(2);
  bool is_cut_unevenly = false;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (loaded[i] == nullptr) continue;
    const TensorBytes& source = tensors[i];
    const std::int64_t rows = source.shape[0], columns = source.shape[1];
    std::vector<std::byte> whole(static_cast<std::size_t>(cpu::packed_bytes(source.type, rows, columns)));
    cpu::pack_panels(TensorView(const_cast<std::byte*>(source.data.data()), source.type, {rows, columns}), whole.data(), pool);
    ASSERT_EQ(loaded[i]->layout, Layout::kPanels) << source.name;
    EXPECT_EQ(std::memcmp(loaded[i]->data, whole.data(), whole.size()), 0) << source.name;
    const std::int64_t piece = rows_of_a_piece(source.type, columns);
    is_cut_unevenly |= rows > piece && rows % piece != 0;
  }
  EXPECT_TRUE(is_cut_unevenly) << "a test of nothing";
}

// An embedding of one piece and `more` rows.
LargeModel with_rows(DType type, int more) {
  return {.type = type, .vocab_size = static_cast<int>(rows_of_a_piece(type, 256)) + more};
}

INSTANTIATE_TEST_SUITE_P(All, LoadingInPieces,
                         ::testing::Values(with_rows(DType::kQ4_0, 1), with_rows(DType::kQ4_1, 15), with_rows(DType::kQ5_0, 17),
                                           with_rows(DType::kQ5_1, 255), with_rows(DType::kQ8_0, 257),
                                           with_rows(DType::kQ4_K, 300), with_rows(DType::kQ5_K, 16),
                                           with_rows(DType::kQ6_K, 511),
                                           // Rows so long that a piece is the least that there is: 256 of 288.
                                           LargeModel{.type = DType::kQ8_0, .hidden_size = 288, .mlp_size = 121 * 256}),
                         [](const auto& test) {
                           return std::string(to_string(test.param.type)) + (test.param.mlp_size > 256 ? "LongRows" : "");
                         });

}  // namespace
}  // namespace quire
