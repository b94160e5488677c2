// Where in a kernel's source a device operation is called. A parameter `Site site = Site::here()` holds its caller's place.
// (Builtins, for clang 14 has no std::source_location.)
#pragma once

#include <cstring>
#include <string>

namespace simt {

struct Site {
  const char* file = nullptr;
  int line = 0;

  static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

inline bool operator==(Site a, Site b) { return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0); }
std::string to_string(Site site);  // "norm.cu:42"

}  // namespace simt
