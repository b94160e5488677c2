// Where in a kernel's source a device operation is called. A parameter `Site site = Site::here()` holds its caller's place.
// (Builtins, for clang 14 has no std::source_location.)
#pragma once

#include <string>

namespace simt {

struct Site {
  const char* file = nullptr;
  int line = 0;

  static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

bool operator==(Site a, Site b);
std::string to_string(Site site);  // "norm.cu:42"

}  // namespace simt
