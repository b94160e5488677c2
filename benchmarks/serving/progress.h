// ProgressBar: how far a run is, on stderr, if that is a terminal; otherwise nothing.
#pragma once

#include "benchmarks/serving/load_driver.h"

namespace quire::bench {

class ProgressBar {
 public:
  explicit ProgressBar(bool wanted);
  ~ProgressBar();  // wipes the line
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void show(const LoadProgress& progress);

 private:
  bool is_on_;
  bool is_shown_ = false;
  Clock::time_point start_ = Clock::now();
};

// "[#####.....] 12/24 done, 4 open, 0 failed, 3 s"
std::string progress_text(const LoadProgress& progress, double elapsed_s);

}  // namespace quire::bench
