#include "kv/block_allocator.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "quire/error.h"

namespace quire {
namespace {

using Tokens = std::vector<std::int32_t>;

BlockKey key(std::uint64_t n) { return {.low = n, .high = ~n}; }

TEST(BlockAllocator, NeverHandsOutBlockZeroAndCountsDown) {
  BlockAllocator allocator(4, 2);
  std::vector<BlockId> ids;
  for (int i = 0; i < 3; ++i) ids.push_back(allocator.allocate());
  EXPECT_EQ(ids, (std::vector<BlockId>{1, 2, 3}));
  EXPECT_EQ(allocator.allocate(), kNullBlock);
  EXPECT_EQ(allocator.num_held(), 3);
  for (const BlockId id : ids) allocator.release(id);
  EXPECT_EQ(allocator.num_free(), 3);
  allocator.check_invariants();
}

TEST(BlockAllocator, ReleaseOnceTooOftenIsABug) {
  BlockAllocator allocator(4, 2);
  const BlockId id = allocator.allocate();
  allocator.release(id);
  EXPECT_THROW(allocator.release(id), Error);
  EXPECT_THROW(allocator.release(kNullBlock), Error);
  EXPECT_THROW(allocator.retain(id), Error);  // nobody's, and without content
  EXPECT_THROW(allocator.retain(4), Error);
  allocator.check_invariants();
}

TEST(BlockAllocator, PublishedBlockStaysFindableUntilItIsTaken) {
  BlockAllocator allocator(3, 2);
  const Tokens tokens{5, 6};
  const BlockId id = allocator.allocate();
  EXPECT_EQ(allocator.find(key(1), key(0), tokens), kNullBlock);
  EXPECT_TRUE(allocator.publish(id, key(1), key(0), tokens));
  EXPECT_EQ(allocator.find(key(1), key(0), tokens), id);
  allocator.release(id);
  EXPECT_EQ(allocator.num_cached(), 1);
  EXPECT_EQ(allocator.num_free(), 1);
  EXPECT_EQ(allocator.find(key(1), key(0), tokens), id);

  allocator.retain(id);  // a hit
  EXPECT_EQ(allocator.num_cached(), 0);
  EXPECT_EQ(allocator.num_held(), 1);
  allocator.release(id);

  EXPECT_NE(allocator.allocate(), id);  // the block without content goes first
  EXPECT_EQ(allocator.allocate(), id);  // then content is forgotten
  EXPECT_EQ(allocator.find(key(1), key(0), tokens), kNullBlock);
  allocator.check_invariants();
}

TEST(BlockAllocator, SecondBlockWithTheSameContentIsNotPublished) {
  BlockAllocator allocator(4, 1);
  const Tokens tokens{5};
  const BlockId first = allocator.allocate();
  const BlockId second = allocator.allocate();
  EXPECT_TRUE(allocator.publish(first, key(1), key(0), tokens));
  EXPECT_FALSE(allocator.publish(second, key(1), key(0), tokens));
  EXPECT_FALSE(allocator.is_published(second));
  allocator.release(second);
  allocator.release(first);
  EXPECT_EQ(allocator.num_cached(), 1);
  allocator.check_invariants();
}

TEST(BlockAllocator, TakesLeastRecentlyReleasedContentFirst) {
  BlockAllocator allocator(4, 1);
  std::vector<BlockId> ids;
  for (std::int32_t i = 0; i < 3; ++i) {
    ids.push_back(allocator.allocate());
    allocator.publish(ids.back(), key(static_cast<std::uint64_t>(i + 1)), key(0), Tokens{i});
  }
  for (const int i : {1, 2, 0}) allocator.release(ids[static_cast<std::size_t>(i)]);
  allocator.retain(ids[1]);
  allocator.release(ids[1]);  // used again: now the most recent
  EXPECT_EQ(allocator.allocate(), ids[2]);
  EXPECT_EQ(allocator.allocate(), ids[0]);
  EXPECT_EQ(allocator.allocate(), ids[1]);
}

TEST(BlockAllocator, TestHooks) {
  BlockAllocator allocator(6, 1);
  allocator.permute(3);
  std::vector<BlockId> ids;
  allocator.fail_allocation(3);
  for (int i = 0; i < 6; ++i) ids.push_back(allocator.allocate());
  EXPECT_EQ(ids[2], kNullBlock);
  std::vector<BlockId> sorted = ids;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, (std::vector<BlockId>{0, 1, 2, 3, 4, 5}));
  EXPECT_NE(ids, sorted);
}

TEST(PeerBugs, B008_CollidingKeysAreAMiss) {
  BlockAllocator allocator(8, 2);
  allocator.truncate_keys(0);  // every key is equal
  const BlockId a = allocator.allocate();
  const BlockId b = allocator.allocate();
  EXPECT_TRUE(allocator.publish(a, key(1), key(0), Tokens{1, 2}));
  EXPECT_EQ(allocator.find(key(2), key(0), Tokens{1, 3}), kNullBlock);  // other tokens
  EXPECT_EQ(allocator.find(key(2), key(9), Tokens{1, 2}), kNullBlock);  // other prefix, or other salt
  EXPECT_TRUE(allocator.publish(b, key(2), key(0), Tokens{1, 3}));      // both live in the same bucket
  EXPECT_EQ(allocator.find(key(1), key(0), Tokens{1, 2}), a);
  EXPECT_EQ(allocator.find(key(2), key(0), Tokens{1, 3}), b);
  allocator.check_invariants();
}

TEST(PeerBugs, B022_NeverUsedBlocksGoBeforeCachedOnes) {
  BlockAllocator allocator(101, 1);
  std::vector<BlockId> session;
  for (std::int32_t i = 0; i < 12; ++i) {
    session.push_back(allocator.allocate());
    allocator.publish(session.back(), key(static_cast<std::uint64_t>(i + 1)), key(0), Tokens{i});
  }
  for (const BlockId id : session) allocator.release(id);
  for (int i = 0; i < 88; ++i) EXPECT_NE(allocator.allocate(), kNullBlock);
  for (std::int32_t i = 0; i < 12; ++i) {
    EXPECT_EQ(allocator.find(key(static_cast<std::uint64_t>(i + 1)), key(0), Tokens{i}), session[static_cast<std::size_t>(i)]);
  }
}

// The allocator again, from sets and lists, with no thought of speed.
class NaiveAllocator {
 public:
  using Content = std::tuple<std::uint64_t, Tokens>;  // parent, tokens

  explicit NaiveAllocator(int num_blocks) {
    for (BlockId id = 1; id < num_blocks; ++id) free_.push_back(id);
  }
  BlockId allocate() {
    if (free_.empty()) return kNullBlock;
    const BlockId id = free_.front();
    free_.pop_front();
    content_.erase(id);
    owners_[id] = 1;
    return id;
  }
  void retain(BlockId id) {
    std::erase(free_, id);
    ++owners_[id];
  }
  void release(BlockId id) {
    if (--owners_[id] > 0) return;
    owners_.erase(id);
    if (content_.contains(id)) {
      free_.push_back(id);
    } else {
      free_.push_front(id);
    }
  }
  bool publish(BlockId id, const Content& content) {
    if (find(content) != kNullBlock) return false;
    content_[id] = content;
    return true;
  }
  BlockId find(const Content& content) const {
    for (const auto& [id, other] : content_) {
      if (other == content) return id;
    }
    return kNullBlock;
  }
  int num_cached() const {
    return static_cast<int>(std::count_if(free_.begin(), free_.end(), [&](BlockId id) { return content_.contains(id); }));
  }
  int num_free() const { return static_cast<int>(free_.size()) - num_cached(); }
  const std::map<BlockId, int>& owners() const { return owners_; }
  bool has_content(BlockId id) const { return content_.contains(id); }

 private:
  std::deque<BlockId> free_;
  std::map<BlockId, int> owners_;
  std::map<BlockId, Content> content_;
};

// 100 cases of 3,000 operations.
RC_GTEST_PROP(PeerBugs, B019_AllocatorEqualsNaiveModel, ()) {
  const int num_blocks = *rc::gen::inRange(2, 14);
  const int key_bits = *rc::gen::element(0, 2, 8, 63);
  const auto operations = *rc::gen::container<std::vector<std::pair<int, int>>>(
      3000, rc::gen::pair(rc::gen::inRange(0, 8), rc::gen::inRange(0, 1 << 20)));
  BlockAllocator allocator(num_blocks, 2);
  allocator.truncate_keys(key_bits);
  NaiveAllocator model(num_blocks);
  for (const auto& [operation, argument] : operations) {
    std::optional<BlockId> held;
    if (!model.owners().empty()) {
      held = std::next(model.owners().begin(), argument % static_cast<int>(model.owners().size()))->first;
    }
    const std::uint64_t parent = static_cast<std::uint64_t>(argument) % 3;
    const Tokens tokens{argument / 3 % 2, argument / 6 % 2};
    const BlockKey content_key = key(parent * 4 + static_cast<std::uint64_t>(tokens[0] * 2 + tokens[1]) + 100);
    if (operation <= 2) {
      RC_ASSERT(allocator.allocate() == model.allocate());
    } else if (operation <= 4 && held) {
      allocator.release(*held);
      model.release(*held);
    } else if (operation == 5 && held) {
      allocator.retain(*held);
      model.retain(*held);
    } else if (operation == 6 && held && !model.has_content(*held)) {
      RC_ASSERT(allocator.publish(*held, content_key, key(parent), tokens) == model.publish(*held, {parent, tokens}));
    } else if (operation == 7) {
      const BlockId hit = allocator.find(content_key, key(parent), tokens);
      RC_ASSERT(hit == model.find({parent, tokens}));
      if (hit != kNullBlock) {
        allocator.retain(hit);
        model.retain(hit);
      }
    }
    RC_ASSERT(allocator.num_free() == model.num_free());
    RC_ASSERT(allocator.num_cached() == model.num_cached());
    RC_ASSERT(allocator.num_held() == static_cast<int>(model.owners().size()));
  }
  allocator.check_invariants();
  for (const auto& [id, owners] : model.owners()) RC_ASSERT(allocator.num_owners(id) == owners);
}

}  // namespace
}  // namespace quire
