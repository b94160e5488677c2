// Warp operations of lanes: the meeting of the lanes of a mask, and shuffles and votes on top of it. Semantics: PTX ISA 8.5,
// shfl.sync, vote.sync, bar.warp.sync. Stricter than the hardware: all lanes of a mask come from the same place in the source,
// and none of them has returned from the kernel.
#include <bit>
#include <cstring>
#include <string>

#include "simt/block.h"
#include "simt/instructions.h"

namespace simt {
namespace {

std::string describe(const char* name, Site site) { return fmt::format("{} at {}", name, to_string(site)); }

bool same(const WarpOperation::Kind& a, const WarpOperation::Kind& b) {
  return a.operand_bytes == b.operand_bytes && (a.name == b.name || std::strcmp(a.name, b.name) == 0);
}

}  // namespace

WarpOperation& Block::meet(const WarpOperation::Kind& kind, std::uint32_t mask, const void* operand, Site site,
                           void (*complete)(WarpOperation&)) {
  const Lane& me = *running_;
  Warp& warp = warps_[me.warp];
  const std::uint32_t my_bit = 1u << me.lane;
  const auto refuse = [&](const std::string& why) { fail("{}: mask {:#x} {}", describe(kind.name, site), mask, why); };
  if ((mask & my_bit) == 0) refuse("does not name the calling lane");
  if ((mask & ~warp.lanes) != 0) refuse("names lanes that do not exist");
  if ((mask & warp.returned) != 0) refuse("names lanes that have returned from the kernel");

  WarpOperation* found = nullptr;
  for (std::uint32_t open = warp.open; open != 0; open &= open - 1) {
    WarpOperation& operation = warp.operations[std::countr_zero(open)];
    if (operation.arrived == operation.mask || (operation.mask & mask) == 0) continue;  // others are about to leave it
    if (operation.mask != mask)
      refuse(fmt::format("overlaps mask {:#x} of {}", operation.mask, describe(operation.kind.name, operation.site)));
    found = &operation;
  }
  if (found == nullptr) {
    const auto unused = static_cast<std::size_t>(std::countr_one(warp.open));
    if (unused >= warp.operations.size()) fail("{}: too many warp operations under way", describe(kind.name, site));
    warp.open |= 1u << unused;
    found = &warp.operations[unused];
    found->kind = kind;
    found->site = site;
    found->mask = mask;
    found->arrived = found->left = 0;
  } else if (!same(found->kind, kind) || !(found->site == site)) {
    fail("lanes of a warp meet in different operations: {} and {}", describe(kind.name, site),
         describe(found->kind.name, found->site));
  }
  if (kind.operand_bytes > 0) std::memcpy(found->operands[me.lane].data(), operand, kind.operand_bytes);
  found->arrived |= my_bit;
  if (found->arrived == mask) {
    ++statistics_.num_warp_operations;
    if (complete != nullptr) complete(*found);
    for (std::uint32_t others = mask & ~my_bit; others != 0; others &= others - 1)
      make_ready(lanes_[me.warp * kWarpLanes + std::countr_zero(others)]);
  } else {
    wait(kind.name, site);
  }
  return *found;
}

void Block::leave(WarpOperation& operation) {
  operation.left |= 1u << running_->lane;
  if (operation.left != operation.mask) return;
  Warp& warp = warps_[running_->warp];
  warp.open &= ~(1u << (&operation - warp.operations.data()));
}

namespace {

constexpr const char* name_of(Shuffle kind) {
  switch (kind) {
    case Shuffle::kIndex:
      return "__shfl_sync";
    case Shuffle::kUp:
      return "__shfl_up_sync";
    case Shuffle::kDown:
      return "__shfl_down_sync";
    case Shuffle::kXor:
      return "__shfl_xor_sync";
  }
  return "";
}

// The lane whose value `lane` gets; its own where the exchange would leave the segment of `width` lanes.
int source_lane(Shuffle kind, int lane, int operand, int width) {
  const int first = lane & ~(width - 1);
  const int last = first + width - 1;
  operand &= 31;
  int source = lane;
  switch (kind) {
    case Shuffle::kIndex:
      return first | (operand & (width - 1));
    case Shuffle::kUp:
      source = lane - operand;
      return source < first ? lane : source;
    case Shuffle::kDown:
      source = lane + operand;
      break;
    case Shuffle::kXor:
      source = lane ^ operand;
      break;
  }
  return source > last ? lane : source;
}

}  // namespace

void shuffle(Shuffle kind, std::uint32_t mask, void* value, std::size_t bytes, int lane_operand, int width, Site site) {
  Block& b = block();
  if (width < 1 || width > kWarpLanes || !std::has_single_bit(static_cast<unsigned>(width)))
    b.fail("{}: width is {}, must be a power of two up to 32", describe(name_of(kind), site), width);
  const int source = source_lane(kind, b.running().lane, lane_operand, width);
  if ((mask >> source & 1) == 0)
    b.fail("{}: reads lane {}, which its mask {:#x} does not name", describe(name_of(kind), site), source, mask);
  WarpOperation& operation = b.meet({name_of(kind), bytes}, mask, value, site);
  std::memcpy(value, operation.operands[source].data(), bytes);
  b.leave(operation);
}

void gather(std::uint32_t mask, std::uint32_t value, std::uint32_t (&values)[32], const char* name, Site site) {
  WarpOperation& operation = block().meet({name, sizeof(value)}, mask, &value, site);
  for (int i = 0; i < kWarpLanes; ++i) std::memcpy(&values[i], operation.operands[i].data(), sizeof(value));
  block().leave(operation);
}

std::uint32_t ballot(std::uint32_t mask, bool predicate, const char* name, Site site) {
  std::uint32_t values[32];
  gather(mask, predicate ? 1 : 0, values, name, site);
  std::uint32_t votes = 0;
  for (int i = 0; i < kWarpLanes; ++i) {
    if ((mask >> i & 1) != 0 && values[i] != 0) votes |= 1u << i;
  }
  return votes;
}

void sync_warp(std::uint32_t mask, Site site) {
  const auto order = [](WarpOperation& operation) {
    Block& b = block();
    if (b.detects_races()) b.races().sync_lanes(b.running().warp, operation.mask);
  };
  block().leave(block().meet({"__syncwarp", 0}, mask, nullptr, site, order));
}

}  // namespace simt
