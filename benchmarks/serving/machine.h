// Where and with what a figure was made: it stands beside every result.
#pragma once

#include <cstdint>
#include <string>

namespace quire::bench {

struct Machine {
  std::string git_revision = {};  // of the sources that were built; "-dirty" if they had changes; "unknown" outside a clone
  std::string cpu = {};           // its model
  unsigned num_cpus = 0;          // logical
  std::string date = {};          // UTC, "2026-11-30T13:05:00Z"
};

Machine this_machine();

// Bytes of a file, or of all files in a folder; 0 if there are none.
std::uint64_t model_bytes(const std::string& path);

}  // namespace quire::bench
