// Shortage: allocations that fail on purpose. Linking it replaces operator new of the program, so it belongs in a test of its
// own.
#pragma once

#include <cstdint>

namespace quire::test {

// While it lives, the k-th allocation from now of this thread fails with std::bad_alloc; if it lasts, so do all that follow.
// One at a time and thread. k = 0: none fails.
class Shortage {
 public:
  explicit Shortage(std::int64_t k, bool lasts = false);
  ~Shortage();
  Shortage(const Shortage&) = delete;
  Shortage& operator=(const Shortage&) = delete;

  // Whether an allocation of this thread has failed since the last one began. Not all are missed: std::stable_sort does without.
  static bool has_struck();

  // The same for this thread until an allocation has failed.
  static void begin(std::int64_t k);
};

}  // namespace quire::test
