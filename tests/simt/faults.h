// Kernels with one fault each, for the test that the emulator finds it, and the same kernels without.
#pragma once

#include <span>

namespace quire::cuda {

enum class Finding {
  kError,        // every schedule throws
  kRace,         // the hooks build throws in every schedule, any build gives wrong results in some
  kHiddenRace,   // the hooks build throws in every schedule; results may be right
  kWrongResult,  // wrong results in some schedule
  kStray,        // a plain access beside an array: an error, or AddressSanitizer's report
};

struct PlantedFault {
  const char* name;
  Finding finding;
  const char* message;                                 // regular expression for a part of the error's
  void (*run)(bool faulty, const float* x, float* y);  // x [kFaultSize] = 0, 1, 2, ...; without the fault y becomes 1, 2, 3, ...
};

constexpr int kFaultSize = 256;
std::span<const PlantedFault> planted_faults();

}  // namespace quire::cuda
