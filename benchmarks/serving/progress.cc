#include "benchmarks/serving/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace quire::bench {

ProgressBar::ProgressBar(bool wanted) : is_on_(wanted && isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (is_shown_) std::fputs("\r\033[K", stderr);
}

void ProgressBar::show(const LoadProgress& progress) {
  if (!is_on_) return;
  const std::string text = progress_text(progress, std::chrono::duration<double>(Clock::now() - start_).count());
  std::fputs(("\r\033[K" + text).c_str(), stderr);
  std::fflush(stderr);
  is_shown_ = true;
}

std::string progress_text(const LoadProgress& progress, double elapsed_s) {
  constexpr std::size_t kWidth = 32;
  const std::size_t filled = progress.total == 0 ? kWidth : progress.done * kWidth / progress.total;
  return fmt::format("[{}{}] {}/{} done, {} open, {} failed, {:.0f} s", std::string(filled, '#'),
                     std::string(kWidth - filled, '.'), progress.done, progress.total, progress.sent - progress.done,
                     progress.failed, elapsed_s);
}

}  // namespace quire::bench
