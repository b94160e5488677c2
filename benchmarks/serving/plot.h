// Runs plot.py, which lies beside the program, on a file of results. Drawing is matplotlib's work.
#pragma once

#include <string>

namespace quire::bench {

// Throws Error(kUnavailable) with what python3 said, if it cannot draw here. To be asked before a long run.
void check_plotting();
// Draws `jsonl` into the folder. Throws Error(kUnavailable).
void plot(const std::string& jsonl, const std::string& folder);

}  // namespace quire::bench
