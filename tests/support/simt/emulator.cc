#include "simt/emulator.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <ostream>

#include "simt/site.h"

namespace simt {
namespace {

Options current_options;

constexpr std::array kAllSchedules = {
    Options{.schedule = Schedule::kAscending},
    Options{.schedule = Schedule::kDescending},
    Options{.schedule = Schedule::kRandom, .seed = 1},
    Options{.schedule = Schedule::kRandom, .seed = 2},
    Options{.schedule = Schedule::kRandom, .seed = 3, .async_copies = AsyncCopies::kEager},
};

}  // namespace

bool operator==(Site a, Site b) { return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0); }

std::string to_string(Site site) {
  const char* const slash = std::strrchr(site.file, '/');
  return fmt::format("{}:{}", slash != nullptr ? slash + 1 : site.file, site.line);
}

std::ostream& operator<<(std::ostream& out, const Options& options) {
  switch (options.schedule) {
    case Schedule::kAscending:
      out << "ascending";
      break;
    case Schedule::kDescending:
      out << "descending";
      break;
    case Schedule::kRandom:
      out << "random, seed " << options.seed;
      break;
  }
  return out << (options.async_copies == AsyncCopies::kEager ? ", eager copies" : ", lazy copies");
}

std::span<const Options> all_schedules() { return kAllSchedules; }

const Options& options() { return current_options; }

ScopedOptions::ScopedOptions(const Options& options) : before_(current_options) { current_options = options; }
ScopedOptions::~ScopedOptions() { current_options = before_; }

}  // namespace simt
