// What a path to a model may be, and what the message says when it is something else.
#include "model/model_files.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "model/mapped_file.h"
#include "tests/support/expect_error.h"
#include "tests/support/file_writers.h"
#include "tests/support/tiny_model.h"

namespace quire {
namespace {

std::string temp(const std::string& name) {
  return (std::filesystem::path(::testing::TempDir()) / ("model_files_test_" + name)).string();
}

TEST(MappedFile, PagesGivenBackAreReadAgain) {
  const auto path = temp("pages");
  std::string text(3 * 4096 + 100, ' ');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i % 251);
  test::write_file(path, std::string_view(text));
  const auto file = MappedFile::open(path);
  const auto bytes = file->bytes();
  const auto content = [&] { return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()); };
  EXPECT_EQ(content(), text);
  give_back_pages(bytes);
  give_back_pages(bytes.subspan(1, 10));
  give_back_pages({});
  EXPECT_EQ(content(), text);
}

TEST(ModelFiles, NameWhatIsNotAModel) {
  EXPECT_ERROR(open_model("/nonexistent"), ErrorCode::kNotFound, "/nonexistent: no such file or directory");
  test::write_file(temp("model.bin"), std::string_view("x"));
  EXPECT_ERROR(open_model(temp("model.bin")), ErrorCode::kInvalidArgument, "neither a .gguf file nor a directory");
  std::filesystem::create_directories(temp("empty"));
  EXPECT_ERROR(open_model(temp("empty")), ErrorCode::kNotFound, temp("empty") + ": a directory without config.json");
}

TEST(ModelFiles, NameTheFileThatIsNoGguf) {
  const std::string name = temp("short.gguf");
  test::write_gguf(test::tiny_model_spec("llama"), temp("whole.gguf"));
  const auto whole = MappedFile::open(temp("whole.gguf"));
  for (const std::size_t size : {3, 23, 24, 100, 1000}) {
    test::write_file(name, whole->bytes().first(size));
    EXPECT_ERROR(open_model(name), ErrorCode::kInvalidFile, name + ": ");
  }
  test::write_file(name, std::string_view());
  EXPECT_ERROR(open_model(name), ErrorCode::kInvalidFile, name + ": 0 bytes are too few for a GGUF file");
}

TEST(ModelFiles, PointAFolderOfGgufsToItsFiles) {
  const std::string folder = temp("ggufs");
  std::filesystem::create_directories(folder);
  for (const char* name : {"b.gguf", "a.gguf", "README.md"}) test::write_file(folder + "/" + name, std::string_view("x"));
  EXPECT_ERROR(open_model(folder), ErrorCode::kInvalidArgument, folder + ": a directory with GGUF files and no config.json");
  EXPECT_ERROR(open_model(folder), ErrorCode::kInvalidArgument, "name a file, such as " + folder + "/a.gguf");
}

}  // namespace
}  // namespace quire
