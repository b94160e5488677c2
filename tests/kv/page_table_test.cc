#include "kv/page_table.h"

#include <gtest/gtest.h>

#include <numeric>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "quire/error.h"

namespace quire {
namespace {

constexpr int kBlockSize = 4;

std::vector<std::int32_t> counting(int n) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(n));
  std::iota(tokens.begin(), tokens.end(), 10);
  return tokens;
}

int num_live(const PageTable& table) { return table.num_blocks() - table.first_live_block(); }

TEST(PageTable, SlotIsBlockTimesSizePlusOffset) {
  BlockAllocator allocator(10, kBlockSize);
  PageTable table(allocator, {});
  ASSERT_TRUE(table.grow(6));
  EXPECT_EQ(table.num_blocks(), 2);
  EXPECT_EQ(table.slot(0), 1 * kBlockSize);
  EXPECT_EQ(table.slot(5), 2 * kBlockSize + 1);
  EXPECT_THROW(table.slot(8), Error);
  EXPECT_THROW(table.slot(-1), Error);
  static_assert(std::is_same_v<decltype(table.slot(0)), std::int64_t>);  // block ids are multiplied
}

TEST(PageTable, GrowIsAllOrNothing) {
  BlockAllocator allocator(6, kBlockSize);
  PageTable table(allocator, {});
  ASSERT_TRUE(table.grow(4));
  EXPECT_FALSE(table.grow(6 * kBlockSize));  // one block too many
  EXPECT_EQ(table.num_blocks(), 1);
  for (int nth = 1; nth <= 3; ++nth) {
    allocator.fail_allocation(nth);
    EXPECT_FALSE(table.grow(4 * kBlockSize)) << nth;
    EXPECT_EQ(table.num_blocks(), 1);
    EXPECT_EQ(allocator.num_held(), 1);
    allocator.check_invariants();
  }
  EXPECT_TRUE(table.grow(4 * kBlockSize));
}

TEST(PageTable, ReleasesThroughOneDoorAndMoves) {
  BlockAllocator allocator(6, kBlockSize);
  {
    PageTable table(allocator, {});
    ASSERT_TRUE(table.grow(12));
    const PageTable moved(std::move(table));
    EXPECT_EQ(moved.num_blocks(), 3);
    EXPECT_EQ(allocator.num_held(), 3);
  }
  EXPECT_EQ(allocator.num_free(), 5);
  allocator.check_invariants();
}

TEST(PageTable, TruncateKeepsWhatTheTokensNeed) {
  BlockAllocator allocator(6, kBlockSize);
  PageTable table(allocator, {});
  ASSERT_TRUE(table.grow(17));
  table.truncate(9);
  EXPECT_EQ(table.num_blocks(), 3);
  table.truncate(8);
  EXPECT_EQ(table.num_blocks(), 2);
  table.clear();
  EXPECT_EQ(allocator.num_held(), 0);
}

TEST(PageTable, PublishesFullBlocksOnceAndIsAdopted) {
  BlockAllocator allocator(8, kBlockSize);
  const auto tokens = counting(11);
  BlockKeyChain keys({}, kBlockSize);
  keys.extend(tokens);
  std::optional<PageTable> table(std::in_place, allocator, KvGroupSpec{});
  ASSERT_TRUE(table->grow(11));
  const std::vector<BlockId> blocks(table->blocks().begin(), table->blocks().end());
  table->publish(keys, tokens, 7);
  EXPECT_TRUE(allocator.is_published(blocks[0]));
  EXPECT_FALSE(allocator.is_published(blocks[1]));
  table->publish(keys, tokens, 11);
  EXPECT_TRUE(allocator.is_published(blocks[1]));
  EXPECT_FALSE(allocator.is_published(blocks[2]));
  table.reset();
  EXPECT_EQ(allocator.num_cached(), 2);

  PageTable other(allocator, {});
  other.adopt(std::span(blocks).first(2));
  EXPECT_EQ(allocator.num_held(), 2);
  ASSERT_TRUE(other.grow(9));
  EXPECT_EQ(other.slot(7), blocks[1] * kBlockSize + 3);
  EXPECT_EQ(other.num_published(), 2);
  EXPECT_THROW(PageTable(allocator, {}).adopt(other.blocks()), Error);  // the third has no content
  allocator.check_invariants();
}

TEST(PageTable, ReleasesPrefixLast) {
  BlockAllocator allocator(3, 1);
  const auto tokens = counting(2);
  BlockKeyChain keys({}, 1);
  keys.extend(tokens);
  PageTable table(allocator, {});
  ASSERT_TRUE(table.grow(2));
  table.publish(keys, tokens, 2);
  const BlockId first = table.blocks()[0];
  const BlockId second = table.blocks()[1];
  table.clear();
  EXPECT_EQ(allocator.allocate(), second);
  EXPECT_EQ(allocator.allocate(), first);
}

TEST(PageTable, ShareCopiesOnlyThePartialBlock) {
  BlockAllocator allocator(12, kBlockSize);
  PageTable source(allocator, {});
  ASSERT_TRUE(source.grow(10));
  for (const int num_tokens : {7, 8, 9}) {
    PageTable table(allocator, {});
    BlockId copied_from = -1;
    ASSERT_TRUE(table.share(source, num_tokens, &copied_from));
    const int num_full = num_tokens / kBlockSize;
    EXPECT_EQ(table.num_blocks(), num_full + 1);
    for (int i = 0; i < num_full; ++i) EXPECT_EQ(table.blocks()[i], source.blocks()[i]);
    EXPECT_EQ(allocator.num_owners(table.blocks()[num_full]), 1);
    EXPECT_EQ(copied_from, num_tokens % kBlockSize == 0 ? kNullBlock : source.blocks()[num_full]);
  }
  PageTable table(allocator, {});
  BlockId copied_from = -1;
  allocator.fail_allocation(1);
  EXPECT_FALSE(table.share(source, 7, &copied_from));
  EXPECT_EQ(table.num_blocks(), 0);
  EXPECT_EQ(allocator.num_held(), 3);
  EXPECT_FALSE(source.can_share(13));
}

// After n tokens exactly the blocks of positions n - W + 1 to n - 1 are held: what position n still sees, itself not yet written.
TEST(PageTable, SlidingWindowKeepsExactlyWhatTheNextPositionSees) {
  for (const int window : {1, 2, 3, 4, 5, 8, 9}) {
    BlockAllocator allocator(32, kBlockSize);
    PageTable table(allocator, {.window = window});
    for (int n = 1; n <= 40; ++n) {
      ASSERT_TRUE(table.grow(n));
      table.release_out_of_window(n);
      int expected = 0;
      for (int block = 0; block < table.num_blocks(); ++block) {
        const int last_position = (block + 1) * kBlockSize - 1;
        expected += last_position >= n - window + 1 ? 1 : 0;
      }
      EXPECT_EQ(num_live(table), expected) << "window " << window << ", " << n << " tokens";
      EXPECT_EQ(allocator.num_held(), expected);
      if (expected > 0) {
        EXPECT_NO_THROW(table.slot(n - 1));
      }
    }
    allocator.check_invariants();
  }
}

TEST(PageTable, ShareNeedsTheWindowOfTheSource) {
  BlockAllocator allocator(32, kBlockSize);
  PageTable source(allocator, {.window = 4});
  ASSERT_TRUE(source.grow(20));
  source.release_out_of_window(20);
  EXPECT_TRUE(source.can_share(20));
  EXPECT_TRUE(source.can_share(19));   // position 19 sees 16 to 19
  EXPECT_FALSE(source.can_share(18));  // position 18 sees 15, which is gone
  PageTable table(allocator, {.window = 4});
  BlockId copied_from = -1;
  ASSERT_TRUE(table.share(source, 19, &copied_from));
  EXPECT_EQ(table.first_live_block(), 4);
  EXPECT_EQ(copied_from, source.blocks()[4]);
}

}  // namespace
}  // namespace quire
