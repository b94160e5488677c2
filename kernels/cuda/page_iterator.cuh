// From positions to memory: the keys and values a warp copies, found through the page table. The unit is a run of 8 positions,
// which lies in one block since block sizes are multiples of 8, and is contiguous in memory. Of every tile of kTile positions
// the warp copies kRuns neighbouring runs. Page ids are read 32 runs at a time, one per lane, while the 32 before are being
// used, so that no copy waits for a page id but the first. What lies outside [begin, end) is never read: its page ids are not
// followed, its rows become zeros.
#pragma once

#include "kernels/cuda/common.cuh"

namespace quire::cuda {

// Rows [first, last) of the run's 8 are to be copied.
struct PageRun {
  std::int64_t offset;  // of row 0, elements
  int first, last;
};

template <int kTile, int kRuns>
class PageIterator {
  static_assert(32 % kRuns == 0);

 public:
  // Run 0 begins at `first_position`, a multiple of 8.
  QUIRE_DEVICE PageIterator(const AttentionParams& params, const std::int32_t* pages, int first_position, int begin, int end)
      : pages_(pages),
        block_stride_(params.block_stride),
        block_size_(params.block_size),
        first_position_(first_position),
        begin_(begin),
        end_(end) {
    next_page_ = load_page(lane_id());
  }

  template <int kHeadSize>
  QUIRE_DEVICE PageRun next(int kv_head) {
    const int lane = lane_id(), slot = index_ % 32;
    if (slot == 0) {
      const int row = kv_head * block_size_ + position_of(index_ + lane) % block_size_;
      offset_ = std::int64_t{next_page_} * block_stride_ + std::int64_t{row} * kHeadSize;
      next_page_ = load_page(index_ + 32 + lane);
    }
    const int position = position_of(index_);
    ++index_;
    return {__shfl_sync(kFullWarp, offset_, slot), min(max(begin_ - position, 0), 8), min(max(end_ - position, 0), 8)};
  }

 private:
  QUIRE_DEVICE int position_of(int index) const { return first_position_ + index / kRuns * kTile + index % kRuns * 8; }
  QUIRE_DEVICE std::int32_t load_page(int index) const {
    const int position = position_of(index);
    const bool is_live = position + 8 > begin_ && position < end_;
    return is_live ? load_global(pages_ + position / block_size_) : 0;
  }

  const std::int32_t* pages_;  // of the sequence
  std::int64_t block_stride_;
  int block_size_, first_position_, begin_, end_;
  int index_ = 0;
  std::int64_t offset_ = 0;  // of run index_ / 32 * 32 + lane
  std::int32_t next_page_;   // of the run 32 further
};

// Copies a run to rows first_row to first_row + 7 of a tile, as part of the thread's current group of copies.
template <typename T, int kHeadSize>
QUIRE_DEVICE void copy_run(unsigned char* tile, int first_row, const void* pool, const PageRun& run) {
  using Layout = TileLayout<kHeadSize>;
  constexpr int kRunChunks = 8 * Layout::kChunks;
  const T* source = static_cast<const T*>(pool);
  QUIRE_UNROLL
  for (int i = 0; i < (kRunChunks + 31) / 32; ++i) {
    const int chunk = i * 32 + lane_id();
    if (kRunChunks % 32 != 0 && chunk >= kRunChunks) break;
    const int row = chunk / Layout::kChunks;
    const bool is_live = row >= run.first && row < run.last;
    cp_async_16(tile + Layout::offset(first_row + row, chunk % Layout::kChunks),
                source + (is_live ? run.offset + chunk * kChunkElements : 0), is_live ? 16 : 0);
  }
}

}  // namespace quire::cuda
