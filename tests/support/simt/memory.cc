#include "simt/memory.h"

#include <cstring>
#include <string>

#include "simt/block.h"
#include "simt/device_memory.h"
#include "simt/instructions.h"

namespace simt {
namespace {

bool hooks_are_linked = false;

std::uint64_t place_of(Site site) {
  return reinterpret_cast<std::uintptr_t>(site.file) * 4096 + static_cast<std::uint64_t>(site.line);
}

void count(TrafficCounter::Kind kind, std::uint64_t place, const void* address, std::size_t bytes) {
  if (options().count_traffic) block().traffic().note(kind, place, block().running().index, address, bytes);
}

[[noreturn]] void refuse(const char* name, Site site, const std::string& why) {
  block().fail("{} at {}: {}", name, to_string(site), why);
}

// Of an access that the kernel names.
void check_access(const char* name, Space space, const void* address, std::size_t bytes, Site site) {
  if (reinterpret_cast<std::uintptr_t>(address) % bytes != 0)
    refuse(name, site, fmt::format("the address is not a multiple of {}, the size of the type", bytes));
  if (space == Space::kShared && !block().shared().in_use(address, bytes))
    refuse(name, site, "outside of the block's shared memory");
  if (space == Space::kGlobal && !in_device_memory(address, bytes)) refuse(name, site, describe_device_address(address));
}

}  // namespace

bool announce_hooks() { return hooks_are_linked = true; }

bool has_hooks() { return hooks_are_linked; }

void observe_shared(RaceDetector::Access access, TrafficCounter::Kind kind, const void* address, std::size_t bytes, Site site) {
  Block& b = block();
  if (b.detects_races()) b.races().access(access, b.running().index, b.shared().offset(address), bytes, {.site = site});
  count(kind, place_of(site), address, bytes);
}

void observe_global(TrafficCounter::Kind kind, const void* address, std::size_t bytes, Site site) {
  if (kind != TrafficCounter::Kind::kGlobalStore) note_watched_read(address, bytes);
  count(kind, place_of(site), address, bytes);
}

void observe(Access access, const void* address, std::size_t bytes, const void* code) noexcept {
  Block* const b = current_block();
  if (b == nullptr) return;
  const auto place = reinterpret_cast<std::uint64_t>(code);
  const bool reads = access == Access::kRead;
  if (b->shared().owns(address)) {
    if (!b->shared().in_use(address, bytes)) {
      b->note_stray_access(address);
      return;
    }
    if (b->detects_races()) {
      b->races().access(reads ? RaceDetector::Access::kRead : RaceDetector::Access::kWrite, b->running().index,
                        b->shared().offset(address), bytes, {.code = code});
    }
    count(reads ? TrafficCounter::Kind::kSharedLoad : TrafficCounter::Kind::kSharedStore, place, address, bytes);
  } else if ((options().count_traffic || is_watching()) && in_device_memory(address, bytes)) {
    if (reads) note_watched_read(address, bytes);
    count(reads ? TrafficCounter::Kind::kGlobalLoad : TrafficCounter::Kind::kGlobalStore, place, address, bytes);
  }
}

void load(Space space, const void* address, void* value, std::size_t bytes, Site site) {
  const bool is_global = space == Space::kGlobal;
  check_access(is_global ? "load_global" : "load_shared", space, address, bytes, site);
  if (is_global) {
    observe_global(TrafficCounter::Kind::kGlobalLoad, address, bytes, site);
  } else {
    observe_shared(RaceDetector::Access::kRead, TrafficCounter::Kind::kSharedLoad, address, bytes, site);
  }
  std::memcpy(value, address, bytes);
}

void store(Space space, void* address, const void* value, std::size_t bytes, Site site) {
  const bool is_global = space == Space::kGlobal;
  check_access(is_global ? "store_global" : "store_shared", space, address, bytes, site);
  if (is_global) {
    observe_global(TrafficCounter::Kind::kGlobalStore, address, bytes, site);
  } else {
    observe_shared(RaceDetector::Access::kWrite, TrafficCounter::Kind::kSharedStore, address, bytes, site);
  }
  std::memcpy(address, value, bytes);
}

void atomic_load(const void* address, void* value, std::size_t bytes, Site site) {
  Block& b = block();
  const bool is_shared = b.shared().owns(address);
  check_access("an atomic function", is_shared ? Space::kShared : Space::kGlobal, address, bytes, site);
  if (is_shared && b.detects_races())
    b.races().access(RaceDetector::Access::kAtomic, b.running().index, b.shared().offset(address), bytes, {.site = site});
  std::memcpy(value, address, bytes);
}

void atomic_store(void* address, const void* value, std::size_t bytes) { std::memcpy(address, value, bytes); }

}  // namespace simt
