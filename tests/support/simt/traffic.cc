#include "simt/traffic.h"

#include <algorithm>
#include <array>
#include <tuple>

namespace simt {
namespace {

constexpr std::uintptr_t kSectorBytes = 32;
constexpr int kBanks = 32;
constexpr std::uintptr_t kBankBytes = 4;

int lanes_per_phase(std::size_t bytes) { return bytes >= 16 ? 8 : bytes >= 8 ? 16 : 32; }

}  // namespace

void TrafficCounter::prepare() {
  accesses_.clear();
  visits_.clear();
}

void TrafficCounter::note(Kind kind, std::uint64_t place, int thread, const void* address, std::size_t bytes) {
  const std::uint64_t key = (place * 8 + static_cast<std::uint64_t>(kind)) * 1024 + static_cast<std::uint64_t>(thread);
  accesses_.push_back({.kind = kind,
                       .lane = static_cast<std::uint8_t>(thread % 32),
                       .warp = static_cast<std::uint16_t>(thread / 32),
                       .visit = visits_[key]++,
                       .place = place,
                       .address = reinterpret_cast<std::uintptr_t>(address),
                       .bytes = bytes});
}

void TrafficCounter::add_to(Statistics& statistics) {
  const auto request = [](const LaneAccess& a) { return std::tuple(a.kind, a.place, a.warp, a.visit); };
  // Lanes in order too: which of them share a phase must not depend on the schedule.
  std::sort(accesses_.begin(), accesses_.end(), [&](const LaneAccess& a, const LaneAccess& b) {
    return std::tuple_cat(request(a), std::tuple(a.lane)) < std::tuple_cat(request(b), std::tuple(b.lane));
  });
  const LaneAccess* const end = accesses_.data() + accesses_.size();
  for (const LaneAccess* begin = accesses_.data(); begin != end;) {
    const LaneAccess* const next = std::find_if(begin, end, [&](const LaneAccess& a) { return request(a) != request(*begin); });
    switch (begin->kind) {
      case Kind::kGlobalLoad:
        add_global(begin, next, statistics.global_loads);
        break;
      case Kind::kGlobalStore:
        add_global(begin, next, statistics.global_stores);
        break;
      case Kind::kCopyRead:
        add_global(begin, next, statistics.copy_reads);
        break;
      case Kind::kSharedLoad:
        add_shared(begin, next, statistics.shared_loads);
        break;
      case Kind::kSharedStore:
        add_shared(begin, next, statistics.shared_stores);
        break;
      case Kind::kCopyWrite:
        add_shared(begin, next, statistics.copy_writes);
        break;
      case Kind::kMatrixLoad:
        add_shared(begin, next, statistics.matrix_loads);
        break;
    }
    begin = next;
  }
}

void TrafficCounter::add_global(const LaneAccess* begin, const LaneAccess* end, GlobalTraffic& traffic) {
  std::vector<std::uintptr_t> sectors;
  for (const LaneAccess* a = begin; a != end; ++a) {
    traffic.num_bytes += static_cast<std::int64_t>(a->bytes);
    if (a->bytes == 0) continue;
    for (std::uintptr_t s = a->address / kSectorBytes; s <= (a->address + a->bytes - 1) / kSectorBytes; ++s) sectors.push_back(s);
  }
  std::sort(sectors.begin(), sectors.end());
  ++traffic.num_requests;
  traffic.num_sectors += std::unique(sectors.begin(), sectors.end()) - sectors.begin();
}

void TrafficCounter::add_shared(const LaneAccess* begin, const LaneAccess* end, SharedTraffic& traffic) {
  ++traffic.num_requests;
  const int per_phase = lanes_per_phase(begin->bytes);
  while (begin != end) {
    const LaneAccess* const next =
        std::find_if(begin, end, [&](const LaneAccess& a) { return a.lane / per_phase != begin->lane / per_phase; });
    std::vector<std::uintptr_t> words;
    for (const LaneAccess* a = begin; a != next; ++a) {
      for (std::uintptr_t w = a->address / kBankBytes; w <= (a->address + a->bytes - 1) / kBankBytes; ++w) words.push_back(w);
    }
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    std::array<std::int64_t, kBanks> per_bank = {};
    for (const std::uintptr_t word : words) ++per_bank[word % kBanks];
    traffic.num_phases += *std::max_element(per_bank.begin(), per_bank.end());
    ++traffic.num_ideal_phases;
    begin = next;
  }
}

}  // namespace simt
