// AsyncCopyQueue: the copies from global to shared memory (cp.async) of one thread that it has not yet waited for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "simt/site.h"

namespace simt {

struct AsyncCopy {
  static constexpr std::size_t kBytes = 16;

  unsigned char* shared = nullptr;
  const void* global = nullptr;
  std::size_t bytes = 0;  // read; the rest of the 16 become zeros
  std::int64_t group = 0;
  Site site;

  void land() const;
};

class AsyncCopyQueue {
 public:
  void clear();
  void push(AsyncCopy copy);
  void commit() { ++open_group_; }
  // Takes out the next copy that is not among the newest `pending` groups; false when there is none.
  bool pop(int pending, AsyncCopy& copy);
  bool empty() const { return first_ == copies_.size(); }
  const AsyncCopy& front() const { return copies_[first_]; }

 private:
  std::vector<AsyncCopy> copies_;  // [first_, end), by group
  std::size_t first_ = 0;
  std::int64_t open_group_ = 0;
};

}  // namespace simt
