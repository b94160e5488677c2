// The main() of every test: a folder of its own for ::testing::TempDir(), since ctest runs many processes of one test at once.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <iostream>
#include <string>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  std::string folder = std::filesystem::temp_directory_path() / "quire_test_XXXXXX";
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
