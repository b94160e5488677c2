// What a path to a model may be, and what the message says when it is something else.
#include "model/model_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

#include "model/mapped_file.h"
#include "tests/support/expect_error.h"
#include "tests/support/file_writers.h"
#include "tests/support/tiny_model.h"

namespace quire {
namespace {

std::string temp(const std::string& name) {
  return (std::filesystem::path(::testing::TempDir()) / ("model_files_test_" + name)).string();
}

// Of each page of [first, first + count * size) whether the process has it in memory: bit 63 of its entry (Linux, pagemap).
std::vector<bool> pages_in_memory(const std::byte* first, std::size_t count, std::size_t size) {
  std::vector<std::uint64_t> entries(count);
  const auto bytes = static_cast<ssize_t>(count * sizeof(entries.front()));
  const int pagemap = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  const auto offset = static_cast<off_t>(reinterpret_cast<std::uintptr_t>(first) / size * sizeof(entries.front()));
  const bool is_read = pagemap >= 0 && ::pread(pagemap, entries.data(), static_cast<std::size_t>(bytes), offset) == bytes;
  if (pagemap >= 0) ::close(pagemap);
  if (!is_read) return {};
  std::vector<bool> present;
  for (const std::uint64_t entry : entries) present.push_back(entry >> 63 != 0);
  return present;
}

// Those wholly inside what is given back, and no others.
TEST(MappedFile, PagesGivenBackAreReadAgain) {
  const auto path = temp("pages");
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::string text(5 * page + 100, ' ');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i % 251);
  test::write_file(path, std::string_view(text));
  const auto file = MappedFile::open(path);
  const auto bytes = file->bytes();
  const auto content = [&] { return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()); };
  const auto in_memory = [&] { return pages_in_memory(bytes.data(), 6, page); };
  EXPECT_EQ(content(), text);
  const std::vector<bool> all(6, true);
  if (in_memory() != all) GTEST_SKIP() << "this system does not say which pages are in memory";
  give_back_pages({});
  give_back_pages(bytes.subspan(1, 10));
  give_back_pages(bytes.subspan(page + 1, 2 * page - 2));
  EXPECT_EQ(in_memory(), all) << "no page is wholly inside";
  give_back_pages(bytes.subspan(page - 1, 2 * page + 2));
  EXPECT_EQ(in_memory(), (std::vector<bool>{true, false, false, true, true, true}));
  give_back_pages(bytes.subspan(3 * page, page));
  EXPECT_EQ(in_memory(), (std::vector<bool>{true, false, false, false, true, true}));
  give_back_pages(bytes);
  EXPECT_EQ(in_memory(), (std::vector<bool>{false, false, false, false, false, true})) << "the last page is not whole";
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
