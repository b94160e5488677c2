// The floors of docs/architecture.md, held by reading the sources as text: who may include whom, where CUDA may be named, how
// long a file may be, and that every test is run. The tables below are the rules; a new room or package is a line in them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

namespace fs = std::filesystem;
using Lines = std::vector<std::string>;

struct Room {
  std::string_view folder;            // a file belongs to the first room whose folder it is in
  std::vector<std::string_view> may;  // prefixes of the includes allowed beside C++'s own headers, or one of the words below
};
// "*": any of ours. "core", "system", "cuda": the lists of that name.

const std::vector<std::string_view> kSystemHeaders = {"sys/", "linux/", "unistd.h", "fcntl.h", "sched.h", "pthread.h", "cpuid.h"};
const std::vector<std::string_view> kCudaHeaders = {"cuda", "cublas", "nccl", "mma.h", "cooperative_groups", "cub/", "cute/"};

const std::vector<std::string_view> kCoreDoors = {"core/", "quire/error.h", "fmt/"};  // what check.h brings

const std::vector<Room> kRooms = {
    {"include/quire/", {"quire/"}},
    {"src/core/", {"core", "quire/device.h", "spdlog/", "system"}},
    {"src/kv/", {"core", "kv/", "xxhash.h"}},
    {"src/scheduler/", {"core", "scheduler/", "kv/", "quire/request.h"}},
    {"kernels/cuda/", {"core", "kernels/", "cuda", "simt/"}},  // the emulator's side of platform.cuh and its neighbours
    {"kernels/", {"core", "kernels/", "immintrin.h", "simde/", "system"}},
    {"src/backend/cuda/", {"core", "backend/", "kernels/", "quire/device.h", "cuda"}},
    {"src/backend/", {"core", "backend/", "kernels/", "quire/device.h", "system"}},
    {"src/model/", {"core", "model/", "backend/", "kernels/ops.h", "quire/device.h", "boost/json", "system"}},
    {"src/text/", {"core", "text/", "quire/tokenizer.h", "quire/request.h", "boost/json", "oniguruma.h", "utf8proc.h"}},
    {"src/engine/", {"*", "fmt/", "spdlog/", "boost/json", "system"}},
    {"examples/", {"quire/", "command_line.h", "CLI/", "boost/", "unistd.h"}},
    {"benchmarks/serving/",
     {"quire/", "benchmarks/serving/", "examples/command_line.h", "benchmarks/command_line.h", "benchmarks/report.h", "fmt/",
      "CLI/", "boost/", "spawn.h", "system"}},
};
const std::vector<std::string_view> kOurFolders = {"quire/",   "core/",  "kv/",   "scheduler/", "kernels/",
                                                   "backend/", "model/", "text/", "engine/"};

bool starts_with_any(std::string_view text, const std::vector<std::string_view>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](std::string_view prefix) { return text.starts_with(prefix); });
}

bool may_include(const Room& room, std::string_view header) {
  if (header.find_first_of("./") == std::string_view::npos) return true;  // <vector>
  return std::any_of(room.may.begin(), room.may.end(), [&](std::string_view word) {
    if (word == "*") return starts_with_any(header, kOurFolders);
    if (word == "core") return starts_with_any(header, kCoreDoors);
    if (word == "system") return starts_with_any(header, kSystemHeaders);
    if (word == "cuda") return starts_with_any(header, kCudaHeaders);
    return header.starts_with(word);
  });
}

bool is_source(const fs::path& path) {
  constexpr std::array kExtensions = {".h", ".cc", ".cu", ".cuh"};
  return std::find(kExtensions.begin(), kExtensions.end(), path.extension()) != kExtensions.end();
}

Lines read_lines(const fs::path& path) {
  std::ifstream file(path);
  Lines lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// The directive of a preprocessor line and what follows it: {"include", "<vector>"}; empty words for any other line.
std::pair<std::string_view, std::string_view> parse_directive(std::string_view line) {
  constexpr std::string_view kBlanks = " \t";
  const auto skip_blanks = [&] { line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size())); };
  skip_blanks();
  if (!line.starts_with('#')) return {};
  line.remove_prefix(1);
  skip_blanks();
  const std::size_t end = std::min(line.find_first_of(" \t<\"("), line.size());
  const std::string_view directive = line.substr(0, end);
  line.remove_prefix(end);
  skip_blanks();
  return {directive, line};
}

// The header of an include line; empty for any other line.
std::string included_header(std::string_view line) {
  const auto [directive, rest] = parse_directive(line);
  if (directive != "include" || rest.size() < 2) return {};
  return std::string(rest.substr(1, rest.find_first_of(">\"", 1) - 1));
}

void check_includes(const std::string& name, const Lines& lines, Lines& violations) {
  const auto room = std::find_if(kRooms.begin(), kRooms.end(), [&](const Room& r) { return name.starts_with(r.folder); });
  const bool may_see_cuda = starts_with_any(
      name, {"kernels/cuda/", "src/backend/cuda/", "tests/support/simt/", "tests/support/gpu/", "benchmarks/kernels/attention"});
  for (const std::string& line : lines) {
    const std::string header = included_header(line);
    if (header.empty()) continue;
    if (room != kRooms.end() && !may_include(*room, header)) violations.push_back(name + " may not include " + header);
    if (starts_with_any(header, kCudaHeaders) && !may_see_cuda) violations.push_back(name + " includes CUDA's " + header);
  }
}

void check_cuda_condition(const std::string& name, const Lines& lines, Lines& violations) {
  if (name == "src/backend/backend.cc") return;
  for (const std::string& line : lines) {
    const auto [directive, rest] = parse_directive(line);
    const bool is_condition = directive == "if" || directive == "ifdef" || directive == "ifndef" || directive == "elif";
    if (is_condition && rest.find("QUIRE_CUDA") != std::string_view::npos) violations.push_back(name + " asks for QUIRE_CUDA");
  }
}

void check_length(const std::string& name, const Lines& lines, Lines& violations) {
  const std::size_t limit = starts_with_any(name, {"kernels/", "tests/"}) ? 500 : 400;
  const auto head_end = lines.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(lines.size(), 15));
  const bool says_why = std::any_of(lines.begin(), head_end,
                                    [](const std::string& line) { return line.find("Long because") != std::string::npos; });
  if (lines.size() > limit && !says_why)
    violations.push_back(name + " has " + std::to_string(lines.size()) + " lines, over " + std::to_string(limit) +
                         ": split it, or say 'Long because ...' in its first 15 lines");
}

// Whether `line` names `file` itself, not one whose name ends alike. Comments name nothing.
bool names_file(std::string_view line, std::string_view file) {
  line = line.substr(0, line.find('#'));
  for (std::size_t at = line.find(file); at != std::string_view::npos; at = line.find(file, at + 1))
    if (at == 0 || std::string_view(" \t/(\"").find(line[at - 1]) != std::string_view::npos) return true;
  return false;
}

// A test that no CMakeLists.txt names is never run: each x_test.* must be named beside it, or in a folder above.
void check_registered(const fs::path& root, const fs::path& path, Lines& violations) {
  const std::string file = path.filename().string();
  if (file.find("_test.") == std::string::npos) return;
  for (fs::path folder = path.parent_path(); folder != root; folder = folder.parent_path()) {
    const Lines lines = read_lines(folder / "CMakeLists.txt");
    if (std::any_of(lines.begin(), lines.end(), [&](const std::string& line) { return names_file(line, file); })) return;
  }
  violations.push_back(fs::relative(path, root).generic_string() + " is in no CMakeLists.txt");
}

// On a GPU nothing is counted: a test of kernels that expects the emulator's counts must ask has_statistics() first, in its own
// lines or, by a fixture, in those before the first test of its file. traffic_table_test.cc is built for the emulator alone.
void check_statistics(const std::string& name, const Lines& lines, Lines& violations) {
  if (!name.starts_with("tests/kernels/cuda/") || name.ends_with("/traffic_table_test.cc")) return;
  bool always_asks = false, asks = false, is_before_tests = true;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string& line = lines[i];
    if (line.starts_with("TEST")) {
      if (is_before_tests) always_asks = asks;
      is_before_tests = asks = false;
    }
    asks = asks || line.find("has_statistics()") != std::string::npos || line.find("has_hooks()") != std::string::npos;
    const bool counts = line.find("take_statistics()") != std::string::npos || line.find("simt::ReadWatch") != std::string::npos;
    if (counts && !is_before_tests && !asks && !always_asks)
      violations.push_back(name + ":" + std::to_string(i + 1) + " expects counts without asking has_statistics()");
  }
}

// Every violation in the tree under `root`, each as one line; `num_files` counts what was read.
Lines check_tree(const fs::path& root, int* num_files = nullptr) {
  Lines violations;
  for (const char* top : {"include", "src", "kernels", "examples", "benchmarks", "tests"}) {
    if (!fs::exists(root / top)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      if (!entry.is_regular_file()) continue;
      check_registered(root, entry.path(), violations);
      if (!is_source(entry.path())) continue;
      const std::string name = fs::relative(entry.path(), root).generic_string();
      const Lines lines = read_lines(entry.path());
      check_includes(name, lines, violations);
      check_cuda_condition(name, lines, violations);
      check_length(name, lines, violations);
      check_statistics(name, lines, violations);
      if (num_files != nullptr) ++*num_files;
    }
  }
  std::sort(violations.begin(), violations.end());
  return violations;
}

TEST(Layering, EveryFileKeepsToItsFloor) {
  int num_files = 0;
  EXPECT_THAT(check_tree(QUIRE_SOURCE_DIR, &num_files), testing::IsEmpty());
  EXPECT_GE(num_files, 20) << "the test looks at the wrong folder";
}

// The check itself: one file of each kind of violation, and their neighbours that are right.
class FakeTree : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / "tree";
    ASSERT_TRUE(fs::create_directory(root_));
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const fs::path& name, const std::string& text) {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }

  fs::path root_;
};

TEST_F(FakeTree, WrongIncludesAreNamed) {
  write("include/quire/engine.h",
        "#include <vector>\n#include <fmt/format.h>\n#include <sys/mman.h>\n#include \"quire/error.h\"\n");
  write("src/kv/a.cc", "  #  include \"scheduler/scheduler.h\"\n#include \"core/check.h\"\n");
  write("src/scheduler/b.h", "#include \"model/batch.h\"\n#include \"quire/engine.h\"\n#include \"kv/page_table.h\"\n");
  write("src/model/c.cc", "#include \"kernels/cpu/kernels.h\"\n#include \"kernels/ops.h\"\n#include <boost/json.hpp>\n");
  write("src/core/d.cc", "#include \"kv/block_key.h\"\n#include <fmt/format.h>\n#include <sched.h>\n");
  write("src/engine/e.cc", "#include \"kv/page_table.h\"\n#include \"model/decoder.h\"\n#include <xxhash.h>\n");
  write("src/backend/g.cc", "#include <simt/emulator.h>\n");
  write("kernels/cuda/h.cuh", "#include <simt/platform.h>\n");
  write("examples/f.cc", "#include \"core/check.h\"\n#include \"quire/engine.h\"\n");
  EXPECT_THAT(check_tree(root_),
              testing::ElementsAre(
                  "examples/f.cc may not include core/check.h", "include/quire/engine.h may not include fmt/format.h",
                  "include/quire/engine.h may not include sys/mman.h", "src/backend/g.cc may not include simt/emulator.h",
                  "src/core/d.cc may not include kv/block_key.h", "src/engine/e.cc may not include xxhash.h",
                  "src/kv/a.cc may not include scheduler/scheduler.h", "src/model/c.cc may not include kernels/cpu/kernels.h",
                  "src/scheduler/b.h may not include model/batch.h", "src/scheduler/b.h may not include quire/engine.h"));
}

TEST_F(FakeTree, CudaOutsideItsFoldersIsNamed) {
  write("kernels/cuda/a.cu", "#include <cuda_runtime.h>\n#include <cublasLt.h>\n");
  write("src/backend/cuda/b.cc", "#include <nccl.h>\n");
  write("src/backend/backend.cc", "#ifdef QUIRE_CUDA\n#endif\n");
  write("tests/kernels/c.cc", "#include <cuda_runtime.h>\n");
  write("src/engine/d.cc", "#if defined(QUIRE_CUDA)\n#endif\n// QUIRE_CUDA in a comment\n");
  write("src/engine/e.cc", "# elif QUIRE_CUDA\n#if(QUIRE_CUDA)\n#define QUIRE_CUDA_FREE\n");
  EXPECT_THAT(check_tree(root_),
              testing::ElementsAre("src/engine/d.cc asks for QUIRE_CUDA", "src/engine/e.cc asks for QUIRE_CUDA",
                                   "src/engine/e.cc asks for QUIRE_CUDA", "tests/kernels/c.cc includes CUDA's cuda_runtime.h"));
}

TEST_F(FakeTree, LongFilesMustSayWhy) {
  const auto lines = [](int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += "//\n";
    return text;
  };
  write("src/kv/just.cc", lines(400));
  write("src/kv/long.cc", lines(401));
  write("src/kv/explained.cc", "// Long because the table has 400 rows.\n" + lines(401));
  write("src/kv/too_late.cc", lines(15) + "// Long because nobody reads this far.\n" + lines(401));
  write("tests/kv/just.cc", lines(500));
  write("kernels/cpu/just.cc", lines(500));
  write("kernels/cpu/long.cc", lines(501));
  EXPECT_THAT(check_tree(root_), testing::ElementsAre(testing::HasSubstr("kernels/cpu/long.cc has 501 lines, over 500"),
                                                      testing::HasSubstr("src/kv/long.cc has 401 lines"),
                                                      testing::HasSubstr("src/kv/too_late.cc has 417 lines")));
}

TEST_F(FakeTree, CountsThatAGpuDoesNotMakeAreNamed) {
  const std::string ask = "  if (!simt::has_statistics()) GTEST_SKIP();\n", count = "  simt::take_statistics();\n";
  const auto test = [](const std::string& body) { return "TEST(A, B) {\n" + body + "}\n"; };
  write("tests/kernels/cuda/a.cc", test(ask + count) + test(count));
  write("tests/kernels/cuda/b.cc", test(count + ask) + test("  const simt::ReadWatch watch(x, 1);\n"));
  write("tests/kernels/cuda/fixture.cc", ask + count + test(count) + test(count));
  write("tests/kernels/cuda/traffic_table_test.cc", test(count));
  write("tests/kernels/cuda/CMakeLists.txt", "traffic_table_test.cc\n");
  write("tests/simt/c.cc", test(count));
  EXPECT_THAT(check_tree(root_),
              testing::ElementsAre("tests/kernels/cuda/a.cc:6 expects counts without asking has_statistics()",
                                   "tests/kernels/cuda/b.cc:2 expects counts without asking has_statistics()",
                                   "tests/kernels/cuda/b.cc:6 expects counts without asking has_statistics()"));
}

TEST_F(FakeTree, TestsThatNobodyRunsAreNamed) {
  write("tests/CMakeLists.txt", "add_test(NAME s COMMAND \"${CMAKE_CURRENT_SOURCE_DIR}/scripts/s_test.sh\")\n");
  write("tests/kv/CMakeLists.txt", "quire_test(a_test SOURCES a_test.cc)\n# quire_test(b_test SOURCES b_test.cc)\n");
  for (const char* name :
       {"kv/a_test.cc", "kv/b_test.cc", "kv/_test.cc", "kv/test_data.cc", "scripts/s_test.sh", "quality/q_test.py"})
    write(fs::path("tests") / name, "\n");
  EXPECT_THAT(check_tree(root_),
              testing::ElementsAre("tests/kv/_test.cc is in no CMakeLists.txt", "tests/kv/b_test.cc is in no CMakeLists.txt",
                                   "tests/quality/q_test.py is in no CMakeLists.txt"));
}

}  // namespace
