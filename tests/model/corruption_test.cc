// Files cut short and files with a byte wrong: always an Error or a model, never a crash, a hang or a huge allocation. Run under
// sanitizers, this is where they look.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "core/check.h"
#include "model/gguf.h"
#include "model/model_config.h"
#include "model/safetensors.h"
#include "tests/support/file_writers.h"
#include "tests/support/tiny_model.h"

namespace quire {
namespace {

using test::Bytes;

enum class Verdict { kRead, kRefused };

// Only quire's own errors may come out. The bytes are copied to the end of an exact allocation, so that a sanitizer sees a
// read beyond them.
template <typename Read>
Verdict verdict(std::span<const std::byte> bytes, Read read) {
  const Bytes exact(bytes.begin(), bytes.end());
  try {
    read(std::span<const std::byte>(exact));
    return Verdict::kRead;
  } catch (const Error& error) {
    EXPECT_NE(error.code(), ErrorCode::kInternal) << error.what();
    return Verdict::kRefused;
  }
}

void read_gguf(std::span<const std::byte> bytes) {
  const GgufFile file = GgufFile::parse(bytes, "f");
  (void)model_config_from_gguf(file);
  unsigned sum = 0;  // every byte that a tensor claims can be read
  for (const FileTensor& tensor : file.tensors()) {
    for (const std::byte b : tensor.data) sum += std::to_integer<unsigned>(b);
  }
  volatile unsigned sink = sum;
  (void)sink;
}

void read_safetensors(std::span<const std::byte> bytes) { (void)parse_safetensors(bytes, "f"); }

Bytes file_bytes(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const auto bytes = std::as_bytes(std::span(text));
  return Bytes(bytes.begin(), bytes.end());
}

test::TinyModelSpec small_spec(const std::string& family) {
  test::TinyModelSpec spec = test::tiny_model_spec(family);
  spec.num_layers = 1;
  spec.hidden_size = spec.mlp_size = 32;
  spec.num_heads = 2;
  spec.num_kv_heads = 1;
  spec.head_size = 16;
  spec.vocab_size = 4;
  spec.weight_type = DType::kQ4_0;
  spec.with_tokenizer = false;
  return spec;
}

Bytes small_gguf(const std::string& family) {
  const auto path = std::filesystem::path(::testing::TempDir()) / "corruption.gguf";
  test::write_gguf(small_spec(family), path);
  return file_bytes(path);
}

Bytes small_safetensors() {
  const auto directory = std::filesystem::path(::testing::TempDir()) / "corruption";
  test::write_safetensors(small_spec("qwen2"), directory);
  return file_bytes(directory / "model.safetensors");
}

TEST(Corruption, EveryPrefixOfAGgufFileIsRefused) {
  const Bytes bytes = small_gguf("gemma3");
  ASSERT_EQ(verdict(bytes, read_gguf), Verdict::kRead);
  // The last tensor is a norm of 128 bytes, a multiple of the alignment: no padding to cut.
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    ASSERT_EQ(verdict(std::span(bytes).first(n), read_gguf), Verdict::kRefused) << n << " of " << bytes.size();
  }
}

TEST(Corruption, EveryPrefixOfASafetensorsFileIsRefused) {
  const Bytes bytes = small_safetensors();
  ASSERT_EQ(verdict(bytes, read_safetensors), Verdict::kRead);
  std::uint64_t header_bytes;
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  for (std::size_t n = 0; n < bytes.size(); n += n < header_bytes + 16 ? 1 : 61) {
    ASSERT_EQ(verdict(std::span(bytes).first(n), read_safetensors), Verdict::kRefused) << n << " of " << bytes.size();
  }
}

// Each byte of the header in turn takes values that are off by a bit, by one, or extreme.
template <typename Read>
int corrupt_each(Bytes bytes, std::size_t header_bytes, Read read) {
  int refused = 0;
  for (std::size_t i = 0; i < header_bytes; ++i) {
    const std::byte original = bytes[i];
    for (const int changed : {0x00, 0xFF, 0x80, 0x7F, std::to_integer<int>(original) ^ 1, std::to_integer<int>(original) + 1}) {
      bytes[i] = static_cast<std::byte>(changed);
      refused += verdict(bytes, read) == Verdict::kRefused ? 1 : 0;
    }
    bytes[i] = original;
  }
  return refused;
}

TEST(Corruption, NoByteOfAGgufHeaderBringsItDown) {
  for (const char* family : {"llama", "gemma3"}) {
    const Bytes bytes = small_gguf(family);
    const GgufFile file = GgufFile::parse(bytes, "f");
    const auto header_bytes = static_cast<std::size_t>(file.tensors()[0].data.data() - bytes.data());
    EXPECT_GT(corrupt_each(bytes, header_bytes, read_gguf), static_cast<int>(header_bytes)) << "most changes are noticed";
  }
}

TEST(Corruption, NoByteOfASafetensorsHeaderBringsItDown) {
  const Bytes bytes = small_safetensors();
  std::uint64_t header_bytes;
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  EXPECT_GT(corrupt_each(bytes, header_bytes + 8, read_safetensors), static_cast<int>(header_bytes));
}

TEST(Corruption, NoByteOfConfigJsonBringsItDown) {
  const std::string text =
      R"({"model_type":"gemma3_text","num_hidden_layers":2,"hidden_size":64,"head_dim":16,"num_key_value_heads":4,"sliding_window":4,)"
      R"("layer_types":["full_attention","sliding_attention"],"rope_parameters":{"full_attention":{"rope_type":"yarn","factor":4.0},)"
      R"("sliding_attention":{"rope_type":"default"}},"eos_token_id":[1,2],"vocab_size":9})";
  const auto bytes = std::as_bytes(std::span(text));
  const auto read = [](std::span<const std::byte> b) {
    (void)model_config_from_json({reinterpret_cast<const char*>(b.data()), b.size()}, {}, "f");
  };
  ASSERT_EQ(verdict(bytes, read), Verdict::kRead);
  for (std::size_t n = 0; n < bytes.size(); ++n) ASSERT_EQ(verdict(bytes.first(n), read), Verdict::kRefused) << n;
  EXPECT_GT(corrupt_each(Bytes(bytes.begin(), bytes.end()), bytes.size(), read), static_cast<int>(bytes.size()));
}

}  // namespace
}  // namespace quire
