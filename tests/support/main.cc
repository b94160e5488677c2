// The main() of every test: a folder of its own for ::testing::TempDir(), since ctest runs many processes of one test at once. It
// lies in the TempDir() that the process was given, so that the folder of a death test's child, which nobody lives to remove,
// goes with its parent's. Where the process itself is killed, whoever gave TEST_TMPDIR removes it (scripts/mutate_kernels.py).
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <iostream>
#include <string>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  std::string folder = std::filesystem::path(::testing::TempDir()) / "quire_test_XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    std::cerr << "cannot make a temporary folder " << folder << "\n";
    return 1;
  }
  setenv("TEST_TMPDIR", folder.c_str(), 1);
  const int result = RUN_ALL_TESTS();
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return result;
}
