// cp.async: the queue, and the instructions of intrinsics.h. A copy may land at any moment between its issue and the wait; the
// options choose which. With lazy copies the destination is NaN from the issue on: who still reads the old bytes notices, and who
// reads before the wait notices too.
#include "simt/async_copy.h"

#include <cstring>
#include <string>

#include "simt/block.h"
#include "simt/device_memory.h"
#include "simt/instructions.h"
#include "simt/memory.h"

namespace simt {

void AsyncCopy::land() const {
  if (bytes > 0) std::memcpy(shared, global, bytes);
  std::memset(shared + bytes, 0, kBytes - bytes);
}

void AsyncCopyQueue::clear() {
  copies_.clear();
  first_ = 0;
  open_group_ = 0;
}

void AsyncCopyQueue::push(AsyncCopy copy) {
  copy.group = open_group_;
  copies_.push_back(copy);
}

bool AsyncCopyQueue::pop(int pending, AsyncCopy& copy) {
  if (empty() || copies_[first_].group >= open_group_ - pending) return false;
  copy = copies_[first_++];
  if (empty()) {
    copies_.clear();
    first_ = 0;
  }
  return true;
}

void issue_copy(void* shared, const void* global, int num_bytes, Site site) {
  Block& b = block();
  const auto refuse = [&](const std::string& why) { b.fail("cp_async_16 at {}: {}", to_string(site), why); };
  if (num_bytes < 0 || num_bytes > 16) refuse(fmt::format("num_bytes is {}, must be 0 to 16", num_bytes));
  if (!b.shared().in_use(shared, AsyncCopy::kBytes)) refuse("the destination is outside of the block's shared memory");
  if (reinterpret_cast<std::uintptr_t>(shared) % 16 != 0) refuse("the destination is not 16-byte aligned");
  if (reinterpret_cast<std::uintptr_t>(global) % 16 != 0) refuse("the source is not 16-byte aligned");
  const auto bytes = static_cast<std::size_t>(num_bytes);
  if (bytes > 0 && !in_device_memory(global, bytes)) refuse("reads " + describe_device_address(global));

  observe_shared(RaceDetector::Access::kCopyIssue, TrafficCounter::Kind::kCopyWrite, shared, AsyncCopy::kBytes, site);
  observe_global(TrafficCounter::Kind::kCopyRead, global, bytes, site);
  const AsyncCopy copy = {static_cast<unsigned char*>(shared), global, bytes, 0, site};
  if (options().async_copies == AsyncCopies::kEager) {
    copy.land();
  } else {
    std::memset(shared, 0xFF, AsyncCopy::kBytes);
  }
  b.running().copies.push(copy);
  ++b.statistics().num_async_copies;
}

void commit_copies() { block().running().copies.commit(); }

void wait_for_copies(int pending) {
  Block& b = block();
  AsyncCopy copy;
  while (b.running().copies.pop(pending, copy)) {
    if (options().async_copies == AsyncCopies::kLazy) copy.land();
    if (b.detects_races())
      b.races().access(RaceDetector::Access::kCopyLanding, b.running().index, b.shared().offset(copy.shared), AsyncCopy::kBytes,
                       {.site = copy.site});
  }
}

}  // namespace simt
