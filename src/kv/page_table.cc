#include "kv/page_table.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/check.h"
#include "core/math.h"

namespace quire {

PageTable::PageTable(BlockAllocator& allocator, const KvGroupSpec& group) : allocator_(&allocator), window_(group.window) {
  QUIRE_CHECK_MSG(window_ >= 0, "window {}", window_);
}

PageTable::~PageTable() { clear(); }

PageTable::PageTable(PageTable&& other) noexcept
    : allocator_(other.allocator_),
      window_(other.window_),
      blocks_(std::exchange(other.blocks_, {})),
      first_live_(std::exchange(other.first_live_, 0)),
      num_published_(std::exchange(other.num_published_, 0)) {}

int PageTable::first_block_seen(int position, int window, int block_size) {
  return window == 0 ? 0 : std::max(0, position - window + 1) / block_size;
}

std::int64_t PageTable::slot(int position) const {
  const int block_size = allocator_->block_size();
  const int entry = position / block_size;
  QUIRE_CHECK_MSG(position >= 0 && entry >= first_live_ && entry < num_blocks(), "position {} outside blocks {} to {}", position,
                  first_live_, num_blocks());
  return std::int64_t{blocks_[static_cast<std::size_t>(entry)]} * block_size + position % block_size;
}

int PageTable::num_blocks_for(int num_tokens) const { return ceil_div(num_tokens, allocator_->block_size()); }

int PageTable::num_blocks_to_grow(int num_tokens) const { return std::max(0, num_blocks_for(num_tokens) - num_blocks()); }

bool PageTable::grow(int num_tokens) {
  const int num_new = num_blocks_to_grow(num_tokens);
  if (num_new > allocator_->num_available()) return false;
  const int num_old = num_blocks();
  for (int i = 0; i < num_new; ++i) {
    blocks_.push_back(kNullBlock);  // the entry first: it may throw, and a block without an owner would be lost
    blocks_.back() = allocator_->allocate();
    if (blocks_.back() == kNullBlock) {
      truncate_blocks(num_old);
      return false;
    }
  }
  return true;
}

void PageTable::adopt(std::span<const BlockId> blocks) {
  QUIRE_CHECK(blocks_.empty());
  blocks_.reserve(blocks.size());  // may throw, so before any reference is taken
  for (const BlockId id : blocks) {
    if (id != kNullBlock) {
      QUIRE_CHECK_MSG(allocator_->is_published(id), "block {} is adopted without content", id);
      allocator_->retain(id);
    } else {
      QUIRE_CHECK(window_ > 0 && first_live_ == num_blocks());
      ++first_live_;
    }
    blocks_.push_back(id);
  }
  num_published_ = num_blocks();
}

bool PageTable::can_share(int num_tokens) const {
  return num_tokens <= num_blocks() * allocator_->block_size() &&
         first_live_ <= first_block_seen(num_tokens, window_, allocator_->block_size());
}

bool PageTable::share(const PageTable& source, int num_tokens, BlockId* copied_from) {
  QUIRE_CHECK(blocks_.empty() && window_ == source.window_ && source.can_share(num_tokens));
  const int block_size = allocator_->block_size();
  const int num_full = num_tokens / block_size;
  blocks_.reserve(static_cast<std::size_t>(num_full) + 1);  // may throw, so before any reference is taken
  const BlockId fresh = allocator_->allocate();
  if (fresh == kNullBlock) return false;
  first_live_ = std::min(first_block_seen(num_tokens, window_, block_size), num_full);
  for (int i = 0; i < num_full; ++i) {
    const BlockId id = i < first_live_ ? kNullBlock : source.blocks_[static_cast<std::size_t>(i)];
    if (id != kNullBlock) allocator_->retain(id);
    blocks_.push_back(id);
  }
  blocks_.push_back(fresh);
  num_published_ = num_full;
  *copied_from = num_tokens % block_size == 0 ? kNullBlock : source.blocks_[static_cast<std::size_t>(num_full)];
  return true;
}

void PageTable::publish(const BlockKeyChain& keys, std::span<const std::int32_t> tokens, int num_computed) {
  const auto block_size = static_cast<std::size_t>(allocator_->block_size());
  const int num_full = num_computed / allocator_->block_size();
  for (; num_published_ < num_full; ++num_published_) {
    const auto i = static_cast<std::size_t>(num_published_);
    if (blocks_[i] == kNullBlock) continue;
    allocator_->publish(blocks_[i], keys.key(num_published_), keys.parent(num_published_),
                        tokens.subspan(i * block_size, block_size));
  }
}

void PageTable::release_out_of_window(int next_position) {
  const int first = std::min(first_block_seen(next_position, window_, allocator_->block_size()), num_blocks());
  for (; first_live_ < first; ++first_live_) {
    allocator_->release(std::exchange(blocks_[static_cast<std::size_t>(first_live_)], kNullBlock));
  }
}

void PageTable::truncate(int num_tokens) { truncate_blocks(num_blocks_for(num_tokens)); }

void PageTable::truncate_blocks(int num_kept) {
  // Last first: a prefix is reused more often than what follows it, so it should be the last to be forgotten.
  while (num_blocks() > num_kept) {
    if (blocks_.back() != kNullBlock) allocator_->release(blocks_.back());
    blocks_.pop_back();
  }
  first_live_ = std::min(first_live_, num_blocks());
  num_published_ = std::min(num_published_, num_blocks());
}

}  // namespace quire
