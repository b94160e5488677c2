#include "simt/race_detector.h"

#include <algorithm>

#include "simt/shared_memory.h"

namespace simt {

void RaceDetector::prepare() {
  if (cells_.empty()) {
    cells_.resize(SharedMemory::kCapacity);
    pieces_.resize(SharedMemory::kCapacity / kPieceBytes);
  }
  ++block_;  // makes every piece stale
  epoch_ = 0;
  num_reports_ = 0;
  for (auto& warp : known_) {
    for (int a = 0; a < kLanes; ++a) {
      warp[a] = {};
      warp[a][a] = 1;
    }
  }
}

RaceDetector::Mark RaceDetector::mark(int thread, bool atomic) const {
  const int lane = thread % kLanes;
  return {static_cast<std::uint16_t>(thread), atomic, epoch_, known_[thread / kLanes][lane][lane]};
}

// Whether nothing orders `earlier` before `now`.
bool RaceDetector::races(const Mark& earlier, const Mark& now) const {
  if (earlier.thread == kNobody || earlier.thread == now.thread || earlier.epoch != now.epoch) return false;
  if (earlier.atomic && now.atomic) return false;
  const int warp = now.thread / kLanes;
  if (earlier.thread / kLanes != warp) return true;
  return known_[warp][now.thread % kLanes][earlier.thread % kLanes] < earlier.clock;
}

// False if it reports something.
bool RaceDetector::check(const Cell& cell, Access access, const Mark& now, std::size_t offset, Place place) {
  const bool reads = access == Access::kRead || access == Access::kAtomic;
  const bool writes = access != Access::kRead;
  const auto found = [&](const char* what, const Mark& earlier) {
    report({what, offset, now.thread, earlier.thread, place});
    return false;
  };
  if (access == Access::kCopyLanding) {
    // Its own issue is the last write unless somebody interfered, which was found then.
  } else if (cell.in_flight) {
    return found(reads ? "read before the asynchronous copy has landed" : "write while an asynchronous copy is under way",
                 cell.writer);
  } else if (reads && cell.writer.thread == kNobody) {
    return found("read of uninitialised shared memory", now);
  }
  if (races(cell.writer, now)) return found(writes ? "write after write" : "read after write", cell.writer);
  if (!writes) return true;
  for (const Mark& reader : cell.readers) {
    if (races(reader, now)) return found("write after read", reader);
  }
  return true;
}

void RaceDetector::update(Cell& cell, Access access, const Mark& now) {
  if (access != Access::kRead) {
    cell.writer = now;
    cell.readers = {};  // who is ordered after this write is ordered after them
    cell.in_flight = access == Access::kCopyIssue;
    return;
  }
  Mark& first = cell.readers[0];
  if (first.thread == kNobody || first.thread == now.thread || first.epoch != now.epoch) {
    first = now;
    return;
  }
  Mark& second = cell.readers[1];
  const auto warp = [](const Mark& reader) { return reader.thread / kLanes; };
  const bool keeps_another_warp =
      second.thread != kNobody && second.epoch == now.epoch && warp(second) != warp(first) && warp(now) == warp(first);
  if (!keeps_another_warp) second = now;
}

void RaceDetector::access(Access access, int thread, std::size_t offset, std::size_t bytes, Place place) {
  const Mark now = mark(thread, access == Access::kAtomic);
  bool clean = true;  // one report per access
  const std::size_t end = offset + bytes;
  while (offset < end) {
    const std::size_t begin_of_piece = offset / kPieceBytes * kPieceBytes;
    const std::size_t part_end = std::min(end, begin_of_piece + kPieceBytes);
    const bool all = part_end - offset == kPieceBytes;
    Piece& piece = pieces_[offset / kPieceBytes];
    if (piece.block != block_) piece = {.block = block_, .whole = true, .cell = {}};
    if (!piece.whole || !all) {
      if (piece.whole) std::fill_n(cells_.begin() + static_cast<std::ptrdiff_t>(begin_of_piece), kPieceBytes, piece.cell);
      piece.whole = false;
      for (std::size_t i = offset; i < part_end; ++i) {
        clean = clean && check(cells_[i], access, now, i, place);
        update(cells_[i], access, now);
      }
      if (all && access != Access::kRead) {  // a write makes all bytes alike
        piece.cell = cells_[offset];
        piece.whole = true;
      }
    } else {
      clean = clean && check(piece.cell, access, now, offset, place);
      update(piece.cell, access, now);
    }
    offset = part_end;
  }
}

void RaceDetector::sync_lanes(int warp, std::uint32_t mask) {
  auto& known = known_[warp];
  std::array<std::uint32_t, kLanes> joined = {};
  for (int a = 0; a < kLanes; ++a) {
    if ((mask >> a & 1) == 0) continue;
    for (int b = 0; b < kLanes; ++b) joined[b] = std::max(joined[b], known[a][b]);
  }
  for (int a = 0; a < kLanes; ++a) {
    if ((mask >> a & 1) == 0) continue;
    known[a] = joined;
    ++known[a][a];
  }
}

void RaceDetector::report(const Report& report) {
  if (num_reports_++ == 0) first_ = report;
}

}  // namespace simt
