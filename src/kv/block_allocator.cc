#include "kv/block_allocator.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>

#include "core/check.h"

namespace quire {

namespace {

std::size_t index(BlockId id) { return static_cast<std::size_t>(id); }

}  // namespace

BlockAllocator::BlockAllocator(int num_blocks, int block_size) : block_size_(block_size) {
  QUIRE_CHECK_MSG(num_blocks >= 2 && block_size >= 1, "num_blocks {}, block_size {}", num_blocks, block_size);
  blocks_.resize(index(num_blocks));
  tokens_.resize(blocks_.size() * static_cast<std::size_t>(block_size));
  buckets_.assign(std::bit_ceil(blocks_.size()), kNullBlock);
  for (BlockId id = 1; id < num_blocks; ++id) link_before(id, kNullBlock);
}

BlockAllocator::Block& BlockAllocator::block(BlockId id) { return const_cast<Block&>(std::as_const(*this).block(id)); }

const BlockAllocator::Block& BlockAllocator::block(BlockId id) const {
  QUIRE_CHECK_MSG(id > kNullBlock && id < num_blocks(), "block {} of {}", id, num_blocks());
  return blocks_[index(id)];
}

// The free list is a ring through blocks_[0], so no end is a special case.
void BlockAllocator::link_before(BlockId id, BlockId successor) {
  const BlockId predecessor = blocks_[index(successor)].previous;
  blocks_[index(id)].previous = predecessor;
  blocks_[index(id)].next = successor;
  blocks_[index(predecessor)].next = id;
  blocks_[index(successor)].previous = id;
  ++num_listed_;
  num_cached_ += blocks_[index(id)].is_published ? 1 : 0;
}

void BlockAllocator::unlink(BlockId id) {
  const Block& b = blocks_[index(id)];
  blocks_[index(b.previous)].next = b.next;
  blocks_[index(b.next)].previous = b.previous;
  --num_listed_;
  num_cached_ -= b.is_published ? 1 : 0;
}

BlockId BlockAllocator::allocate() {
  if (allocations_until_failure_ > 0 && --allocations_until_failure_ == 0) return kNullBlock;
  const BlockId id = blocks_[0].next;
  if (id == kNullBlock) return kNullBlock;
  unlink(id);
  if (block(id).is_published) forget(id);
  block(id).num_owners = 1;
  return id;
}

void BlockAllocator::retain(BlockId id) {
  Block& b = block(id);
  QUIRE_CHECK_MSG(b.num_owners > 0 || b.is_published, "block {} has neither owner nor content", id);
  if (b.num_owners++ == 0) unlink(id);
}

void BlockAllocator::release(BlockId id) {
  Block& b = block(id);
  QUIRE_CHECK_MSG(b.num_owners > 0, "block {} is released once too often", id);
  if (--b.num_owners > 0) return;
  link_before(id, b.is_published ? kNullBlock : blocks_[0].next);
}

BlockKey BlockAllocator::truncated(const BlockKey& key) const {
  return {.low = key.low & key_mask_.low, .high = key.high & key_mask_.high};
}

std::size_t BlockAllocator::bucket_of(const BlockKey& key) const {
  return static_cast<std::size_t>(key.low) & (buckets_.size() - 1);
}

bool BlockAllocator::publish(BlockId id, const BlockKey& key, const BlockKey& parent, std::span<const std::int32_t> tokens) {
  Block& b = block(id);
  QUIRE_CHECK_MSG(b.num_owners > 0 && !b.is_published, "block {}: {} owners, published: {}", id, b.num_owners, b.is_published);
  if (find(key, parent, tokens) != kNullBlock) return false;
  std::copy(tokens.begin(), tokens.end(), tokens_.begin() + std::ptrdiff_t{id} * block_size_);
  b.key = truncated(key);
  b.parent = parent;
  b.is_published = true;
  BlockId& bucket = buckets_[bucket_of(b.key)];
  b.bucket_next = std::exchange(bucket, id);
  return true;
}

BlockId BlockAllocator::find(const BlockKey& full_key, const BlockKey& parent, std::span<const std::int32_t> tokens) const {
  QUIRE_CHECK_MSG(tokens.size() == static_cast<std::size_t>(block_size_), "{} tokens in a block of {}", tokens.size(),
                  block_size_);
  const BlockKey key = truncated(full_key);
  for (BlockId id = buckets_[bucket_of(key)]; id != kNullBlock; id = blocks_[index(id)].bucket_next) {
    const Block& b = blocks_[index(id)];
    if (b.key == key && b.parent == parent &&
        std::equal(tokens.begin(), tokens.end(), tokens_.begin() + std::ptrdiff_t{id} * block_size_)) {
      return id;
    }
  }
  return kNullBlock;
}

// REQUIRES: `id` is published, and not in the free list (whose count of cached blocks would go wrong).
void BlockAllocator::forget(BlockId id) {
  Block& b = blocks_[index(id)];
  BlockId* link = &buckets_[bucket_of(b.key)];
  while (*link != id) {
    QUIRE_CHECK_MSG(*link != kNullBlock, "block {} is missing in the content index", id);
    link = &blocks_[index(*link)].bucket_next;
  }
  *link = std::exchange(b.bucket_next, kNullBlock);
  b.is_published = false;
}

void BlockAllocator::truncate_keys(int num_bits) {
  QUIRE_CHECK(num_bits >= 0 && num_bits < 64);
  QUIRE_CHECK(std::none_of(blocks_.begin(), blocks_.end(), [](const Block& b) { return b.is_published; }));
  key_mask_ = {.low = (1ULL << num_bits) - 1, .high = 0};
}

void BlockAllocator::permute(std::uint32_t seed) {
  QUIRE_CHECK(num_listed_ == num_blocks() - 1 && num_cached_ == 0);
  std::vector<BlockId> ids;
  for (BlockId id = 1; id < num_blocks(); ++id) ids.push_back(id);
  std::uint64_t state = seed;
  for (std::size_t i = ids.size(); i > 1; --i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    std::swap(ids[i - 1], ids[static_cast<std::size_t>((state >> 33) % i)]);
  }
  blocks_[0].previous = blocks_[0].next = kNullBlock;
  num_listed_ = 0;
  for (const BlockId id : ids) link_before(id, kNullBlock);
}

void BlockAllocator::check_invariants() const {
  int listed = 0;
  int cached = 0;
  for (BlockId id = blocks_[0].next; id != kNullBlock; id = block(id).next) {
    QUIRE_CHECK_MSG(block(id).num_owners == 0, "block {} is in the free list and has owners", id);
    QUIRE_CHECK_MSG(blocks_[index(block(id).next)].previous == id, "the free list is broken behind block {}", id);
    QUIRE_CHECK_MSG(++listed < num_blocks(), "the free list has a cycle");
    cached += block(id).is_published ? 1 : 0;
  }
  QUIRE_CHECK_MSG(listed == num_listed_ && cached == num_cached_, "free list: {} of {}, cached: {} of {}", listed, num_listed_,
                  cached, num_cached_);
  int held = 0;
  int published = 0;
  for (BlockId id = 1; id < num_blocks(); ++id) {
    QUIRE_CHECK_MSG(block(id).num_owners >= 0, "block {} has {} owners", id, block(id).num_owners);
    held += block(id).num_owners > 0 ? 1 : 0;
    published += block(id).is_published ? 1 : 0;
  }
  QUIRE_CHECK_MSG(held == num_held(), "{} blocks have owners, {} are held", held, num_held());
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    for (BlockId id = buckets_[i]; id != kNullBlock; id = block(id).bucket_next) {
      QUIRE_CHECK_MSG(block(id).is_published && bucket_of(block(id).key) == i, "block {} is in the wrong bucket", id);
      --published;
    }
  }
  QUIRE_CHECK_MSG(published == 0, "the content index misses {} published blocks", published);
}

}  // namespace quire
