// simt/emulator.h on a GPU: there is one schedule, the device's, and nothing is counted.
#include "simt/emulator.h"

#include <ostream>

namespace simt {

std::ostream& operator<<(std::ostream& out, const Options&) { return out << "the device's schedule"; }

std::span<const Options> all_schedules() {
  static const Options only;
  return {&only, 1};
}

const Options& options() { return all_schedules().front(); }

ScopedOptions::ScopedOptions(const Options&) {}
ScopedOptions::~ScopedOptions() = default;

bool has_hooks() { return false; }
bool has_statistics() { return false; }

Statistics take_statistics() { return {}; }

ReadWatch::ReadWatch(const void* address, std::size_t bytes)
    : begin_(static_cast<const unsigned char*>(address)), num_reads_(bytes) {}
ReadWatch::~ReadWatch() = default;
void ReadWatch::note(const void*, std::size_t) {}

}  // namespace simt
