#include "model/safetensors.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/file_writers.h"
#include "tests/support/tiny_model.h"

namespace quire {
namespace {

using test::Bytes;
using test::safetensors_bytes;

#define EXPECT_REFUSED(bytes, part) EXPECT_ERROR(parse_safetensors(bytes, "f"), ErrorCode::kInvalidFile, part)

// A header with one tensor record.
std::string one(std::string_view record) { return "{\"t\":{" + std::string(record) + "}}"; }

TEST(Safetensors, GivesTensorsInPlace) {
  const std::vector<test::TensorBytes> tensors = {{"a", DType::kF32, {2, 3}, Bytes(24, std::byte{1})},
                                                  {"b", DType::kBF16, {5}, Bytes(10, std::byte{2})},
                                                  {"c", DType::kF16, {}, Bytes(2, std::byte{3})},
                                                  {"d", DType::kF32, {0, 4}, {}}};
  for (const bool pad : {true, false}) {
    const Bytes bytes = safetensors_bytes(tensors, pad);
    const auto found = parse_safetensors(bytes, "f");
    ASSERT_EQ(found.size(), 4u);
    EXPECT_EQ(found[0].describe(), "'a' F32 [2, 3]");
    EXPECT_EQ(found[1].describe(), "'b' BF16 [5]");
    EXPECT_EQ(found[2].describe(), "'c' F16 []");
    EXPECT_EQ(found[3].describe(), "'d' F32 [0, 4]");
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(std::equal(found[i].data.begin(), found[i].data.end(), tensors[i].data.begin(), tensors[i].data.end())) << i;
    }
  }
}

TEST(Safetensors, RefusesBrokenHeaders) {
  EXPECT_REFUSED(Bytes(7), "the header length at offset 0 needs 8 bytes");
  EXPECT_REFUSED(Bytes(8), "the header does not begin with '{'");
  EXPECT_REFUSED(safetensors_bytes(" {}", 0), "does not begin with '{'");
  EXPECT_REFUSED(safetensors_bytes("{", 0), "not valid JSON");
  EXPECT_REFUSED(safetensors_bytes("{} x", 0), "text after the JSON value");
  EXPECT_REFUSED(safetensors_bytes("{\"a\":1}", 0), "tensor 'a' is not an object");
  EXPECT_REFUSED(safetensors_bytes("{\"__metadata__\":{\"a\":1}}", 0), "__metadata__ is not an object of strings");
  EXPECT_REFUSED(safetensors_bytes("{\"\xFF\":{}}", 0), "not valid JSON");
  EXPECT_TRUE(parse_safetensors(safetensors_bytes("{}   ", 0), "f").empty());
}

TEST(Safetensors, RefusesBrokenRecords) {
  EXPECT_REFUSED(safetensors_bytes(one(R"("shape":[],"data_offsets":[0,4])"), 4), "tensor 't' has no 'dtype'");
  EXPECT_REFUSED(safetensors_bytes(one(R"("dtype":3,"shape":[],"data_offsets":[0,4])"), 4), "tensor 't' has dtype 3");
  EXPECT_REFUSED(safetensors_bytes(one(R"("dtype":"F32","data_offsets":[0,4])"), 4), "tensor 't' has no 'shape'");
  EXPECT_REFUSED(safetensors_bytes(one(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), 4), "has dimension -1");
  EXPECT_REFUSED(safetensors_bytes(one(R"("dtype":"F32","shape":[1.5],"data_offsets":[0,4])"), 4), "has dimension 1.5E0");
  EXPECT_REFUSED(safetensors_bytes(one(R"("dtype":"F32","shape":[1,1,1,1,1],"data_offsets":[0,4])"), 4),
                 "expected up to 4 dimensions");
  EXPECT_REFUSED(safetensors_bytes(one(R"("dtype":"F32","shape":[1])"), 4), "tensor 't' has no 'data_offsets'");
  EXPECT_REFUSED(safetensors_bytes(one(R"("dtype":"F32","shape":[1],"data_offsets":[0])"), 4), "has data_offsets [0]");
  EXPECT_REFUSED(safetensors_bytes(one(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), 4), "its data_offsets are [4, 0]");
  EXPECT_REFUSED(safetensors_bytes(one(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4),
                 "needs 8 bytes, its data_offsets are [0, 4]");
  EXPECT_REFUSED(safetensors_bytes(one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), 3),
                 "ends at data offset 4, the file has 3");
  EXPECT_REFUSED(safetensors_bytes(one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), 5),
                 "5 bytes of data, the tensors cover 4");
  EXPECT_REFUSED(safetensors_bytes(one(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), 8), "a hole or an overlap");
  EXPECT_ERROR(parse_safetensors(safetensors_bytes(one(R"("dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4])"), 4), "f"),
               ErrorCode::kUnsupported, "tensor 't' has dtype F8_E4M3");
}

TEST(Safetensors, RefusesDuplicateKeys) {
  const std::string record = R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  EXPECT_REFUSED(safetensors_bytes("{\"t\":" + record + ",\"t\":" + record + "}", 4), "key 't' occurs twice");
  EXPECT_REFUSED(safetensors_bytes(one(R"("dtype":"F16","dtype":"F32","shape":[1],"data_offsets":[0,4])"), 4),
                 "key 'dtype' occurs twice");
  EXPECT_REFUSED(safetensors_bytes("{\"t\":" + record + ",\"\\u0074\":" + record + "}", 4), "key 't' occurs twice");
}

TEST(PeerBugs, B142_SafetensorsLengthsAreBoundedByTheFile) {
  const auto with_length = [](std::uint64_t length) {
    Bytes bytes;
    test::append(bytes, length);
    bytes.resize(32, std::byte{'{'});
    return bytes;
  };
  EXPECT_REFUSED(with_length(std::uint64_t{1} << 63), "the header length is 9223372036854775808, at most 100000000");
  EXPECT_REFUSED(with_length(100'000'000), "the header length is 100000000, more than the remaining 24 bytes hold");
  EXPECT_REFUSED(
      safetensors_bytes(
          R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12),
      "tensor 'b' begins at data offset 4, expected 8");
  EXPECT_REFUSED(safetensors_bytes(one(R"("dtype":"F32","shape":[4398046511105,4398046511105],"data_offsets":[0,4])"), 4),
                 "more than 2^63 - 1 bytes");
  EXPECT_REFUSED(safetensors_bytes(one(R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4])"), 4),
                 "more than 2^63 - 1 bytes");
  EXPECT_REFUSED(
      safetensors_bytes(one(R"("dtype":"F32","shape":[1],"data_offsets":[18446744073709551612,18446744073709551616])"), 4),
      "data offset");
  EXPECT_REFUSED(
      safetensors_bytes(one(R"("dtype":"F32","shape":[1],"data_offsets":[18446744073709551611,18446744073709551615])"), 4),
      "a hole");
  for (const char* open : {"[", "{\"a\":"}) {
    std::string deep = "{\"a\":";
    for (int i = 0; i < 100'000; ++i) deep += open;
    EXPECT_REFUSED(safetensors_bytes(deep, 0), "not valid JSON");
  }
}

class Checkpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::path(::testing::TempDir()) / "safetensors_checkpoint";
    std::filesystem::remove_all(directory_);
    test::write_safetensors(test::tiny_model_spec("qwen2"), directory_, {.num_shards = 3});
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  void write_index(std::string_view map) {
    test::write_file(directory_ / "model.safetensors.index.json", "{\"weight_map\":" + std::string(map) + "}");
  }
  std::filesystem::path directory_;
};

TEST_F(Checkpoint, OpensShards) { EXPECT_EQ(open_safetensors(directory_).tensors.size(), 27u); }

TEST_F(Checkpoint, TreatsFileNamesAsUntrusted) {
  for (const char* name :
       {"\"../a\"", "\"/etc/passwd\"", "\"a/b\"", "\"a\\\\b\"", "\"..\"", "\".\"", "\"\"", "3", "\"a\\u0000b\""}) {
    write_index(std::string("{\"t\":") + name + "}");
    EXPECT_ERROR(open_safetensors(directory_), ErrorCode::kInvalidFile, "expected a plain file name");
  }
}

TEST_F(Checkpoint, WantsEachTensorWhereTheIndexHasIt) {
  write_index(R"({"t":"model-00001-of-00003.safetensors"})");
  EXPECT_ERROR(open_safetensors(directory_), ErrorCode::kInvalidFile,
               "no tensor 't', which model.safetensors.index.json places here");
  write_index(R"({"model.embed_tokens.weight":"model-00001-of-00003.safetensors","t":"model-00009-of-00003.safetensors"})");
  EXPECT_ERROR(open_safetensors(directory_), ErrorCode::kNotFound, "model-00009-of-00003.safetensors");
  std::filesystem::copy_file(directory_ / "model-00001-of-00003.safetensors", directory_ / "copy.safetensors");
  write_index(
      R"({"model.embed_tokens.weight":"model-00001-of-00003.safetensors","model.layers.0.input_layernorm.weight":"copy.safetensors"})");
  EXPECT_ERROR(open_safetensors(directory_), ErrorCode::kInvalidFile, "is in another shard too");
  write_index("[]");
  EXPECT_ERROR(open_safetensors(directory_), ErrorCode::kInvalidFile, "no object 'weight_map'");
}

}  // namespace
}  // namespace quire
