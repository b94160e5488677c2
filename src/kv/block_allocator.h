// BlockAllocator: which of N fixed-size KV blocks are free, which are shared by how many owners, and which hold what content.
// Ids and counts only: the memory belongs to the KV pool. The prefix cache is this class and no more: a published block keeps
// its key after its last release and stays findable until allocate() takes it from the front of the free list. Hence eviction is
// allocation, in the order: blocks without content first, then the least recently released.
// Every operation is O(1) and allocates nothing. Not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/block_key.h"

namespace quire {

using BlockId = std::int32_t;

// Block 0 is never handed out: padded rows may write there, and page table entries whose block was given up hold it.
inline constexpr BlockId kNullBlock = 0;

class BlockAllocator {
 public:
  // `num_blocks` counts block 0. REQUIRES: num_blocks >= 2, block_size >= 1.
  BlockAllocator(int num_blocks, int block_size);

  int num_blocks() const { return static_cast<int>(blocks_.size()); }  // N, block 0 included
  int block_size() const { return block_size_; }                       // tokens per block

  // free + cached + held == N - 1.
  int num_free() const { return num_listed_ - num_cached_; }       // no owner, no content
  int num_cached() const { return num_cached_; }                   // no owner, findable
  int num_held() const { return num_blocks() - 1 - num_listed_; }  // at least one owner
  int num_available() const { return num_listed_; }                // what allocate() can give: free + cached

  // A block with one owner and no content; forgets the content of the block it takes. kNullBlock: none is available.
  BlockId allocate();

  // One more owner: of a held block (sharing), or of a cached one (a prefix hit).
  void retain(BlockId id);

  // One owner less. Without owners a block goes to the back of the free list if it is published, else to the front.
  void release(BlockId id);

  int num_owners(BlockId id) const { return block(id).num_owners; }
  bool is_published(BlockId id) const { return block(id).is_published; }

  // Makes a held block findable: `tokens` [B] follow the prefix that `parent` stands for. Only to be called after the step that
  // wrote the block's last slot has completed. False, and no change: another block with this content is findable already.
  bool publish(BlockId id, const BlockKey& key, const BlockKey& parent, std::span<const std::int32_t> tokens);

  // The block published with this content, held or cached, or kNullBlock. A hit means that key, parent and all tokens are equal:
  // an equal key alone is a collision, and a miss.
  BlockId find(const BlockKey& key, const BlockKey& parent, std::span<const std::int32_t> tokens) const;

  // Recounts everything from the lists and throws Error(kInternal) on the first contradiction. O(N).
  void check_invariants() const;

  // Test hooks. Keys keep only their lowest `num_bits` bits, which forces collisions. REQUIRES: nothing is published.
  void truncate_keys(int num_bits);
  // The n-th allocate() from now fails, once; 0: none does.
  void fail_allocation(std::int64_t nth) { allocations_until_failure_ = nth; }
  // Hands out never-used blocks in a scattered order. REQUIRES: no block was allocated yet.
  void permute(std::uint32_t seed);

 private:
  struct Block {
    BlockKey key;
    BlockKey parent;
    std::int32_t num_owners = 0;
    BlockId previous = kNullBlock;  // in the free list, a ring through block 0
    BlockId next = kNullBlock;
    BlockId bucket_next = kNullBlock;  // in the bucket of its key
    bool is_published = false;
  };

  Block& block(BlockId id);
  const Block& block(BlockId id) const;
  void unlink(BlockId id);
  void link_before(BlockId id, BlockId successor);
  std::size_t bucket_of(const BlockKey& key) const;
  BlockKey truncated(const BlockKey& key) const;
  void forget(BlockId id);

  int block_size_;
  int num_listed_ = 0;                // length of the free list
  int num_cached_ = 0;                // of these, published
  std::vector<Block> blocks_;         // [N]; blocks_[0] is the head of the free list
  std::vector<std::int32_t> tokens_;  // [N, B] of published blocks
  std::vector<BlockId> buckets_;      // content index: a power of two of chains through bucket_next
  BlockKey key_mask_{~0ULL, ~0ULL};
  std::int64_t allocations_until_failure_ = 0;
};

}  // namespace quire
