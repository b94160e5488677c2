#include "simt/emulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <ostream>

#include "simt/memory.h"
#include "simt/site.h"

namespace simt {
namespace {

Options current_options;

std::vector<Options> make_schedules() {
  std::vector<Options> schedules = {
      {.schedule = Schedule::kAscending},
      {.schedule = Schedule::kDescending},
      {.schedule = Schedule::kRandom, .seed = 1},
      {.schedule = Schedule::kRandom, .seed = 2},
      {.schedule = Schedule::kRandom, .seed = 3, .async_copies = AsyncCopies::kEager},
  };
  const char* const more = std::getenv("QUIRE_SIMT_SEEDS");
  const int num_more = more != nullptr ? std::atoi(more) : 0;
  for (int i = 0; i < num_more; ++i) {
    schedules.push_back({.schedule = Schedule::kRandom,
                         .seed = static_cast<std::uint64_t>(i) + 4,
                         .async_copies = i % 2 == 0 ? AsyncCopies::kLazy : AsyncCopies::kEager});
  }
  return schedules;
}

}  // namespace

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

std::span<const Options> all_schedules() {
  static const std::vector<Options> schedules = make_schedules();
  return schedules;
}

const Options& options() { return current_options; }

namespace {

// All living ones.
std::vector<ReadWatch*> watches;

}  // namespace

ReadWatch::ReadWatch(const void* address, std::size_t bytes)
    : begin_(static_cast<const unsigned char*>(address)), num_reads_(bytes) {
  watches.push_back(this);
}
ReadWatch::~ReadWatch() { std::erase(watches, this); }

void ReadWatch::note(const void* address, std::size_t bytes) {
  const unsigned char* const end = begin_ + num_reads_.size();
  const auto* const first = static_cast<const unsigned char*>(address);
  for (const unsigned char* byte = std::max(first, begin_); byte < std::min(first + bytes, end); ++byte) {
    std::uint8_t& count = num_reads_[byte - begin_];
    if (count < 255) ++count;
  }
}

bool is_watching() { return !watches.empty(); }

void note_watched_read(const void* address, std::size_t bytes) {
  for (ReadWatch* watch : watches) watch->note(address, bytes);
}

ScopedOptions::ScopedOptions(const Options& options) : before_(current_options) { current_options = options; }
ScopedOptions::~ScopedOptions() { current_options = before_; }

}  // namespace simt
