#include "model/gguf.h"

#include <gtest/gtest.h>
#include <cstring>

#include <chrono>
#include <limits>

#include "tests/support/expect_error.h"
#include "tests/support/file_writers.h"
#include "tests/support/tiny_model.h"

namespace quire {
namespace {

using test::append;
using test::Bytes;
using test::GgufWriter;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

GgufFile parse(const Bytes& bytes) { return GgufFile::parse(bytes, "f.gguf"); }

#define EXPECT_REFUSED(bytes, part) EXPECT_ERROR(parse(bytes), ErrorCode::kInvalidFile, part)

Bytes f32(std::initializer_list<float> values) {
  Bytes bytes;
  for (const float value : values) append(bytes, value);
  return bytes;
}

// A file written field by field, for what the writer cannot say.
class RawGguf {
 public:
  RawGguf(std::uint64_t num_tensors, std::uint64_t num_values, std::uint32_t version = 3) {
    append(bytes, std::as_bytes(std::span("GGUF", 4)));
    append(bytes, version);
    append(bytes, num_tensors);
    append(bytes, num_values);
  }
  RawGguf& key(std::string_view name, std::uint32_t type) {
    append(bytes, name);
    append(bytes, type);
    return *this;
  }
  RawGguf& tensor(std::string_view name, std::vector<std::uint64_t> dims, std::uint32_t type, std::uint64_t offset) {
    append(bytes, name);
    append(bytes, static_cast<std::uint32_t>(dims.size()));
    for (const std::uint64_t dim : dims) append(bytes, dim);
    append(bytes, type);
    append(bytes, offset);
    return *this;
  }
  template <typename T>
  RawGguf& value(T v) {
    append(bytes, v);
    return *this;
  }
  RawGguf& data(std::size_t num_bytes) {
    bytes.resize((bytes.size() + 31) / 32 * 32 + num_bytes);
    return *this;
  }
  Bytes bytes;
};

TEST(Gguf, GivesValuesOfEveryType) {
  GgufWriter writer;
  writer.add("u8", std::uint8_t{200});
  writer.add("i8", std::int8_t{-5});
  writer.add("u16", std::uint16_t{60000});
  writer.add("i16", std::int16_t{-300});
  writer.add("u32", std::uint32_t{4000000000});
  writer.add("i32", std::int32_t{-7});
  writer.add("i64", std::int64_t{-1} << 40);
  writer.add("u64", std::uint64_t{1} << 40);
  writer.add("f32", 1.5f);
  writer.add("f64", 0.1);
  writer.add("bool", true);
  writer.add("string", "text");
  writer.add_array("ints", std::vector<std::int16_t>{-1, 2});
  writer.add_array("floats", std::vector<float>{0.5f, -INFINITY});
  writer.add_array("doubles", std::vector<double>{0.25});
  writer.add_array("strings", std::vector<std::string>{"a", "", "c d"});
  writer.add_bools("bools", {true, false});
  const Bytes bytes = writer.finish();
  const GgufFile file = parse(bytes);
  EXPECT_EQ(file.integer("u8"), 200);
  EXPECT_EQ(file.integer("i8"), -5);
  EXPECT_EQ(file.integer("u16"), 60000);
  EXPECT_EQ(file.integer("i16"), -300);
  EXPECT_EQ(file.integer("u32"), 4000000000);
  EXPECT_EQ(file.integer("i32"), -7);
  EXPECT_EQ(file.integer("i64"), std::int64_t{-1} << 40);
  EXPECT_EQ(file.integer("u64"), std::int64_t{1} << 40);
  EXPECT_EQ(file.number("f32"), 1.5);
  EXPECT_EQ(file.number("f64"), 0.1);
  EXPECT_EQ(file.number("u8"), 200.0);
  EXPECT_EQ(file.find_bool("bool"), true);
  EXPECT_EQ(file.string("string"), "text");
  EXPECT_THAT(*file.find_integers("ints"), ElementsAre(-1, 2));
  EXPECT_THAT(*file.find_floats("floats"), ElementsAre(0.5f, -INFINITY));
  EXPECT_THAT(*file.find_floats("doubles"), ElementsAre(0.25f));
  EXPECT_THAT(*file.find_strings("strings"), ElementsAre("a", "", "c d"));
  EXPECT_THAT(*file.find_bools("bools"), ElementsAre(true, false));
  EXPECT_EQ(file.find_integer("absent"), std::nullopt);
  EXPECT_FALSE(file.contains("absent"));
  EXPECT_ERROR(file.integer("absent"), ErrorCode::kInvalidFile, "f.gguf: metadata 'absent' is missing");
}

TEST(Gguf, RefusesValuesOfAnotherType) {
  GgufWriter writer;
  writer.add("f32", 1.5f);
  writer.add("string", "text");
  writer.add("big", std::numeric_limits<std::uint64_t>::max());
  writer.add("nan", std::nanf(""));
  writer.add_array("nans", std::vector<float>{std::nanf("")});
  writer.add_array("ints", std::vector<int>{1});
  const Bytes bytes = writer.finish();
  const GgufFile file = parse(bytes);
  EXPECT_ERROR(file.integer("f32"), ErrorCode::kInvalidFile, "metadata 'f32' is f32, expected an integer");
  EXPECT_ERROR(file.integer("ints"), ErrorCode::kInvalidFile, "'ints' is an array of i32, expected an integer");
  EXPECT_ERROR(file.integer("big"), ErrorCode::kInvalidFile, "'big' is beyond 2^63 - 1");
  EXPECT_ERROR(file.number("string"), ErrorCode::kInvalidFile, "'string' is string, expected a number");
  EXPECT_ERROR(file.number("nan"), ErrorCode::kInvalidFile, "'nan' is nan");
  EXPECT_ERROR(file.find_bool("ints"), ErrorCode::kInvalidFile, "expected a bool");
  EXPECT_ERROR(file.find_string("ints"), ErrorCode::kInvalidFile, "expected a string");
  EXPECT_ERROR(file.find_strings("string"), ErrorCode::kInvalidFile, "expected an array of strings");
  EXPECT_ERROR(file.find_floats("ints"), ErrorCode::kInvalidFile, "expected an array of floats");
  EXPECT_ERROR(file.find_floats("nans"), ErrorCode::kInvalidFile, "'nans' element 0 is not a number");
  EXPECT_ERROR(file.find_bools("ints"), ErrorCode::kInvalidFile, "expected an array of bools");
}

TEST(Gguf, GivesTensorsWithTheOutermostDimensionFirst) {
  GgufWriter writer;
  writer.add_tensor({"a", DType::kF32, {2, 3}, f32({1, 2, 3, 4, 5, 6})});
  writer.add_tensor({"b", DType::kQ8_0, {2, 32}, Bytes(68)});
  writer.add_tensor({"c", DType::kF32, {1}, f32({7})});
  for (const std::uint32_t version : {2u, 3u}) {
    const Bytes bytes = writer.finish(32, version);
    const GgufFile file = parse(bytes);
    ASSERT_EQ(file.tensors().size(), 3u);
    EXPECT_EQ(file.find_tensor("a")->describe(), "'a' F32 [2, 3]");
    EXPECT_EQ(file.find_tensor("b")->describe(), "'b' Q8_0 [2, 32]");
    EXPECT_EQ(file.find_tensor("b")->data.size(), 68u);
    EXPECT_EQ(file.find_tensor("c")->data.size(), 4u);
    EXPECT_EQ(std::memcmp(file.find_tensor("c")->data.data(), f32({7}).data(), 4), 0);
    EXPECT_EQ(file.find_tensor("d"), nullptr);
  }
}

TEST(Gguf, HonoursTheAlignment) {
  for (const std::uint32_t alignment : {8u, 64u, 4096u}) {
    GgufWriter writer;
    writer.add("general.alignment", alignment);
    writer.add_tensor({"a", DType::kF32, {1}, f32({1})});
    writer.add_tensor({"b", DType::kF32, {1}, f32({2})});
    const Bytes bytes = writer.finish(alignment);
    const GgufFile file = parse(bytes);
    EXPECT_EQ(std::memcmp(file.find_tensor("b")->data.data(), f32({2}).data(), 4), 0);
  }
}

TEST(Gguf, ReadsAFileOfMetadataOnly) {
  GgufWriter writer;
  writer.add("a", 1);
  Bytes bytes = writer.finish();
  while (bytes.back() == std::byte{0} && bytes.size() > 41) bytes.pop_back();  // no padding either
  EXPECT_EQ(parse(writer.finish()).tensors().size(), 0u);
}

TEST(Gguf, RefusesWhatIsNotGguf) {
  EXPECT_REFUSED(Bytes{}, "0 bytes are too few for a GGUF file");
  EXPECT_REFUSED(Bytes(23), "23 bytes are too few for a GGUF file");
  EXPECT_REFUSED(Bytes(24), "not a GGUF file");
  EXPECT_REFUSED(Bytes(64), "not a GGUF file");
  EXPECT_ERROR(parse(RawGguf(0, 0, 1).bytes), ErrorCode::kUnsupported, "version 1");
  EXPECT_ERROR(parse(RawGguf(0, 0, 4).bytes), ErrorCode::kUnsupported, "version 4");
  EXPECT_ERROR(parse(RawGguf(0, 0, 0x03000000).bytes), ErrorCode::kUnsupported, "big-endian");
}

TEST(Gguf, RefusesBrokenMetadata) {
  EXPECT_REFUSED(RawGguf(0, 1).key("", 0).value('a').bytes, "metadata key 0 is empty");
  EXPECT_REFUSED(RawGguf(0, 1).key("\xFF", 0).value('a').bytes, "metadata key 0 is not UTF-8");
  EXPECT_REFUSED(RawGguf(0, 1).key(std::string(65536, 'a'), 0).value('a').bytes,
                 "a metadata key has length 65536, at most 65535");
  EXPECT_REFUSED(RawGguf(0, 2).key("a", 0).value('a').key("a", 0).value('b').bytes, "metadata 'a' occurs twice");
  EXPECT_REFUSED(RawGguf(0, 1).key("a", 13).value('a').bytes, "metadata 'a' has unknown value type 13");
  EXPECT_REFUSED(RawGguf(0, 1).key("a", 7).value('\2').bytes, "metadata 'a' holds 2 as a bool");
  EXPECT_REFUSED(RawGguf(0, 1).key("a", 9).value(9u).value(std::uint64_t{1}).value(0u).bytes, "'a' is an array of arrays");
  EXPECT_REFUSED(RawGguf(0, 1).key("a", 9).value(13u).value(std::uint64_t{0}).bytes, "'a' has unknown value type 13");
}

TEST(Gguf, RefusesBrokenTensors) {
  EXPECT_REFUSED(RawGguf(1, 0).tensor("", {1}, 0, 0).data(4).bytes, "the name of tensor 0 is empty");
  EXPECT_REFUSED(RawGguf(1, 0).tensor(std::string(64, 't'), {1}, 0, 0).data(4).bytes, "a tensor name has length 64, at most 63");
  EXPECT_REFUSED(RawGguf(1, 0).tensor("t", {}, 0, 0).data(64).bytes, "tensor 't' has 0 dimensions");
  EXPECT_REFUSED(RawGguf(1, 0).tensor("t", {1, 1, 1, 1, 1}, 0, 0).data(4).bytes, "tensor 't' has 5 dimensions");
  EXPECT_REFUSED(RawGguf(1, 0).tensor("t", {4, 0}, 0, 0).data(4).bytes, "tensor 't' has dimension 1 of 0");
  EXPECT_REFUSED(RawGguf(1, 0).tensor("t", {33}, 2, 0).data(64).bytes, "rows of 33 elements, not a multiple of Q4_0's 32");
  EXPECT_REFUSED(RawGguf(1, 0).tensor("t", {1}, 0, 4).data(64).bytes, "tensor 't' has offset 4, expected 0");
  EXPECT_REFUSED(RawGguf(2, 0).tensor("t", {1}, 0, 0).tensor("u", {1}, 0, 0).data(64).bytes,
                 "tensor 'u' has offset 0, expected 32");
  EXPECT_REFUSED(RawGguf(2, 0).tensor("t", {1}, 0, 0).tensor("u", {1}, 0, 64).data(128).bytes,
                 "tensor 'u' has offset 64, expected 32");
  EXPECT_REFUSED(RawGguf(1, 0).tensor("t", {9}, 0, 0).data(32).bytes, "tensor 't' needs 36 bytes at offset 0, the file has 32");
}

TEST(Gguf, RefusesOtherTensorTypesByName) {
  EXPECT_ERROR(parse(RawGguf(1, 0).tensor("t", {256}, 16, 0).data(256).bytes), ErrorCode::kUnsupported,
               "tensor 't' has type 16 (IQ2_XXS)");
  EXPECT_ERROR(parse(RawGguf(1, 0).tensor("t", {256}, 10, 0).data(256).bytes), ErrorCode::kUnsupported, "type 10 (Q2_K)");
  EXPECT_ERROR(parse(RawGguf(1, 0).tensor("t", {256}, 39, 0).data(256).bytes), ErrorCode::kUnsupported, "type 39 (MXFP4)");
  EXPECT_ERROR(parse(RawGguf(1, 0).tensor("t", {256}, 77, 0).data(256).bytes), ErrorCode::kUnsupported, "type 77 (unknown)");
}

TEST(Gguf, OpensASplitModelByAnyOfItsParts) {
  const std::filesystem::path stem = std::filesystem::path(::testing::TempDir()) / "split";
  const auto paths = test::write_split_gguf(test::tiny_model_spec("llama"), stem, 3);
  for (const auto& path : paths) {
    const GgufFile file = GgufFile::open(path);
    EXPECT_EQ(file.path(), paths[0].string());
    EXPECT_EQ(file.tensors().size(), 20u);
    EXPECT_NE(file.find_tensor("token_embd.weight"), nullptr);
    EXPECT_NE(file.find_tensor("output_norm.weight"), nullptr);
    EXPECT_EQ(file.find_tensor("output_norm.weight")->name, "output_norm.weight");
    EXPECT_EQ(file.string("general.architecture"), "llama");
  }
  const std::filesystem::path renamed = std::filesystem::path(::testing::TempDir()) / "renamed.gguf";
  std::filesystem::copy_file(paths[1], renamed, std::filesystem::copy_options::overwrite_existing);
  EXPECT_ERROR(GgufFile::open(renamed), ErrorCode::kInvalidFile, "does not end in -00002-of-00003.gguf");
  std::filesystem::copy_file(paths[1], paths[2], std::filesystem::copy_options::overwrite_existing);
  EXPECT_ERROR(GgufFile::open(paths[0]), ErrorCode::kInvalidFile, "says it is part 2 of 3, its name says 3 of 3");
  std::filesystem::remove(paths[2]);
  EXPECT_ERROR(GgufFile::open(paths[0]), ErrorCode::kNotFound, "split-00003-of-00003.gguf");
}

TEST(Gguf, NamesAMissingFile) {
  EXPECT_ERROR(GgufFile::open("/nonexistent/m.gguf"), ErrorCode::kNotFound, "/nonexistent/m.gguf: cannot open");
  EXPECT_ERROR(GgufFile::open(::testing::TempDir()), ErrorCode::kInvalidArgument, "not a regular file");
}

// Refusals are immediate, whatever size the file claims: 10 ms, and ten times that under sanitizers.
class Quick {
 public:
  ~Quick() {
    const auto spent = std::chrono::steady_clock::now() - start_;
    EXPECT_LT(std::chrono::duration<double>(spent).count(), 0.5) << "refusing took long";
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

constexpr std::uint64_t kHuge = std::uint64_t{1} << 63;

TEST(PeerBugs, B139_TensorSizesDoNotOverflow) {
  const Quick quick;
  const std::uint64_t big = (std::uint64_t{1} << 42) + 1;
  EXPECT_REFUSED(RawGguf(1, 0).tensor("t", {big, big}, 0, 0).data(64).bytes, "tensor 't' has more than 2^63 - 1 elements");
  EXPECT_REFUSED(RawGguf(1, 0).tensor("t", {big, 1u << 20}, 0, 0).data(64).bytes, "tensor 't' has more than 2^63 - 1 bytes");
  EXPECT_REFUSED(RawGguf(1, 0).tensor("t", {big}, 0, 0).data(64).bytes, "the file has 64 bytes of tensor data");
  EXPECT_REFUSED(RawGguf(1, 0).tensor("t", {kHuge}, 0, 0).data(64).bytes, "has dimension 0 of 9223372036854775808");
  EXPECT_REFUSED(RawGguf(1, 0).tensor("t", {kHuge - 1}, 0, 0).data(64).bytes, "more than 2^63 - 1 bytes");
  // Two sizes whose padded sum wraps.
  EXPECT_REFUSED(RawGguf(2, 0).tensor("t", {(kHuge >> 2) - 8}, 0, 0).tensor("u", {(kHuge >> 2) - 8}, 0, 0).data(64).bytes,
                 "tensor 't'");
  EXPECT_REFUSED(RawGguf(1, 0).tensor("t", {1}, 0, ~std::uint64_t{31}).data(64).bytes, "has offset 18446744073709551584");
  EXPECT_REFUSED(RawGguf(2, 0).tensor("t", {1}, 0, 0).tensor("t", {1}, 0, 32).data(64).bytes, "tensor 't' occurs twice");
}

TEST(PeerBugs, B139_AlignmentIsChecked) {
  const Quick quick;
  for (const std::uint32_t alignment : {0u, 1u, 3u, 4u, 24u, 1u << 17, 1u << 30, 0xFFFFFFFFu}) {
    const auto bytes = RawGguf(1, 1).key("general.alignment", 4).value(alignment).tensor("t", {1}, 0, 0).data(64).bytes;
    EXPECT_REFUSED(bytes, "metadata 'general.alignment' is " + std::to_string(alignment));
  }
  EXPECT_REFUSED(RawGguf(1, 1).key("general.alignment", 5).value(32).tensor("t", {1}, 0, 0).data(64).bytes,
                 "'general.alignment' is i32");
  EXPECT_REFUSED(RawGguf(1, 1).key("general.alignment", 8).value(std::uint64_t{0}).tensor("t", {1}, 0, 0).data(64).bytes,
                 "is string");
  EXPECT_REFUSED(RawGguf(1, 1).key("general.alignment", 10).value(std::uint64_t{32}).tensor("t", {1}, 0, 0).data(64).bytes,
                 "is u64");
}

TEST(PeerBugs, B142_CountsAreBoundedByTheFile) {
  const Quick quick;
  EXPECT_REFUSED(RawGguf(kHuge, 0).bytes, "the tensor count is 9223372036854775808");
  EXPECT_REFUSED(RawGguf(0, kHuge).bytes, "the metadata count is 9223372036854775808");
  EXPECT_REFUSED(RawGguf(1000, 0).bytes, "the tensor count is 1000, more than the remaining 8 bytes hold");
  EXPECT_REFUSED(RawGguf(0, 1000).bytes, "the metadata count is 1000, more than the remaining 0 bytes hold");
  EXPECT_REFUSED(RawGguf(0, 1).key("a", 8).value(kHuge).bytes, "a has length 9223372036854775808");
  EXPECT_REFUSED(RawGguf(0, 1).key("a", 8).value(std::uint64_t{1000}).bytes, "a at offset 45 needs 1000 bytes, 0 remain");
  EXPECT_REFUSED(RawGguf(0, 1).value(kHuge).data(32).bytes, "a metadata key has length 9223372036854775808");
  for (std::uint32_t type = 0; type < 13; ++type) {
    if (type == 9) continue;
    EXPECT_REFUSED(RawGguf(0, 1).key("a", 9).value(type).value(kHuge).bytes, "a is 9223372036854775808, at most 1073741824");
    EXPECT_REFUSED(RawGguf(0, 1).key("a", 9).value(type).value(std::uint64_t{1} << 29).bytes,
                   "a is 536870912, more than the remaining");
  }
}

}  // namespace
}  // namespace quire
