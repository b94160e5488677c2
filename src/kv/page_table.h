// PageTable: the ordered blocks of one sequence in one KV group, from position to slot. It owns one reference per block and is
// the only door through which a sequence's blocks are released. It knows positions and blocks, never sequences or steps.
// Entry i serves positions [i * B, (i + 1) * B). In a sliding group, entries whose positions no later token sees become
// kNullBlock. Shared blocks are always full and never written. Move-only. Not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/block_allocator.h"
#include "kv/block_key.h"

namespace quire {

// Layers that keep the same positions share page tables. All groups have the same bytes per block.
struct KvGroupSpec {
  int window = 0;  // positions a token sees, its own included; 0: all
};

class PageTable {
 public:
  // REQUIRES: `allocator` outlives the table.
  PageTable(BlockAllocator& allocator, const KvGroupSpec& group);
  ~PageTable();
  PageTable(PageTable&& other) noexcept;
  PageTable& operator=(PageTable&&) = delete;
  PageTable(const PageTable&) = delete;
  PageTable& operator=(const PageTable&) = delete;

  int window() const { return window_; }
  int num_blocks() const { return static_cast<int>(blocks_.size()); }  // entries, null ones included
  std::span<const BlockId> blocks() const { return blocks_; }
  int first_live_block() const { return first_live_; }  // entries before it are kNullBlock
  int num_published() const { return num_published_; }  // leading entries offered to the index

  // Where the KV rows of `position` lie: block * B + position % B. REQUIRES: its entry exists and is not null.
  std::int64_t slot(int position) const;

  // Entries that positions [0, num_tokens) need.
  int num_blocks_for(int num_tokens) const;

  // Blocks that grow(num_tokens) would allocate.
  int num_blocks_to_grow(int num_tokens) const;

  // Makes room for positions [0, num_tokens), or changes nothing and returns false.
  bool grow(int num_tokens);

  // Takes over a cached prefix: `blocks` as entries 0, 1, ..., one reference each; leading ones may be null in a sliding group.
  // REQUIRES: the table is empty, every block is published.
  void adopt(std::span<const BlockId> blocks);

  // Becomes a table for the first `num_tokens` positions of `source`, whose full blocks it shares; a partial last block is
  // replaced by a fresh one, which is to become a copy of `*copied_from` (kNullBlock: no partial block, nothing to copy). The
  // fresh block also has room for position num_tokens. False, and no change: no block is available.
  // REQUIRES: the table is empty, source.can_share(num_tokens).
  bool share(const PageTable& source, int num_tokens, BlockId* copied_from);

  // True if the table still holds every block that position num_tokens sees.
  bool can_share(int num_tokens) const;

  // Publishes blocks filled by the first `num_computed` tokens and not offered before. `tokens` are the sequence's. Only after
  // the step that wrote them has completed. REQUIRES: keys cover the full blocks of num_computed tokens.
  void publish(const BlockKeyChain& keys, std::span<const std::int32_t> tokens, int num_computed);

  // In a sliding group, releases the blocks that neither `next_position` nor any later one sees.
  void release_out_of_window(int next_position);

  // Keeps the entries of positions [0, num_tokens) and releases the rest, last first.
  void truncate(int num_tokens);
  void truncate_blocks(int num_blocks);  // the same, in entries
  void clear() { truncate_blocks(0); }

  // First entry that position `position` reads, its own included, with this window and block size.
  static int first_block_seen(int position, int window, int block_size);

 private:
  BlockAllocator* allocator_;
  int window_;
  std::vector<BlockId> blocks_;
  int first_live_ = 0;
  int num_published_ = 0;
};

}  // namespace quire
