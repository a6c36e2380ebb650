#include "outrider/kv/block_pool.h"

#include <gtest/gtest.h>

#include <set>

namespace outrider {
namespace {

TEST(BlockPoolTest, HandsOutEachBlockOnceAndTakesItBack) {
  BlockPool pool(3);
  std::set<int32_t> blocks;
  for (int i = 0; i < 3; ++i) blocks.insert(pool.Allocate().value());
  EXPECT_EQ(blocks, (std::set<int32_t>{0, 1, 2}));
  EXPECT_FALSE(pool.Allocate().has_value());
  EXPECT_EQ(pool.Usage(), 1.0);
  pool.Release(1);
  EXPECT_EQ(pool.Allocate(), 1);
}

TEST(BlockPoolDeathTest, ReleasingAFreeBlockIsABug) {
  BlockPool pool(2);
  EXPECT_DEATH(pool.Release(0), "free already");
  EXPECT_DEATH(pool.Release(2), "check failed");
}

BlockKey Key(uint8_t tag) {
  BlockKey key{};
  key[0] = tag;
  return key;
}

TEST(BlockPoolTest, APublishedBlockIsSharedWhileUsedAndAfterwards) {
  BlockPool pool(2);
  const int32_t block = pool.Allocate().value();
  EXPECT_FALSE(pool.Share(Key(1)).has_value());
  pool.Publish(block, Key(1));
  EXPECT_EQ(pool.Share(Key(1)), block);
  EXPECT_EQ(pool.references(block), 2);
  pool.Release(block);
  pool.Release(block);
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_EQ(pool.Share(Key(1)), block);
  EXPECT_EQ(pool.num_free(), 1);
}

// Numbers of pages say which rank has them, so that pools of several ranks share none.
TEST(BlockPoolTest, ARanksBlocksHaveNumbersOfTheirOwn) {
  std::set<int32_t> all;
  for (int32_t rank = 0; rank < 3; ++rank) {
    BlockPool pool(2, {rank, 3});
    int32_t left = -1;
    pool.SetLeaves([&](int32_t block, const BlockKey&) { left = block; });
    const int32_t first = pool.Allocate().value();
    const int32_t second = pool.Allocate().value();
    EXPECT_FALSE(pool.Allocate().has_value());
    for (const int32_t block : {first, second}) {
      EXPECT_EQ(RankOfPage(block, 3), rank);
      EXPECT_EQ(PageNumber(OwnPage(block, 3), {rank, 3}), block);
      EXPECT_EQ(pool.references(block), 1);
      all.insert(block);
    }
    pool.Publish(second, Key(1));
    EXPECT_EQ(pool.Share(Key(1)), second);
    for (const int32_t block : {first, second, second}) pool.Release(block);
    EXPECT_EQ(pool.Allocate(), first);
    EXPECT_EQ(pool.Allocate(), second);
    EXPECT_EQ(left, second);
    pool.Release(first);
    EXPECT_EQ(pool.num_free(), 1);
    EXPECT_DEATH(pool.Release(PageNumber(0, {(rank + 1) % 3, 3})), "check failed");
  }
  EXPECT_EQ(all, (std::set<int32_t>{0, 1, 2, 3, 4, 5}));
}

TEST(BlockPoolTest, ForgetsTheBlockUnusedForLongest) {
  BlockPool pool(3);
  for (uint8_t b = 0; b < 3; ++b) pool.Publish(pool.Allocate().value(), Key(b));
  for (const int32_t b : {1, 0, 2}) pool.Release(b);
  EXPECT_EQ(pool.Share(Key(1)), 1);  // used again: now the youngest
  pool.Release(1);
  EXPECT_EQ(pool.Allocate(), 0);
  EXPECT_FALSE(pool.Share(Key(0)).has_value());
  EXPECT_EQ(pool.Allocate(), 2);
  EXPECT_EQ(pool.Share(Key(1)), 1);
  EXPECT_FALSE(pool.Allocate().has_value());
}

TEST(BlockPoolTest, UnpublishedBlocksGoOutFirst) {
  BlockPool pool(2);
  const int32_t published = pool.Allocate().value();
  const int32_t plain = pool.Allocate().value();
  pool.Publish(published, Key(7));
  pool.Release(plain);
  pool.Release(published);
  EXPECT_EQ(pool.Allocate(), plain);
  EXPECT_EQ(pool.Share(Key(7)), published);
}

TEST(BlockPoolTest, ASecondBlockWithTheSameContentsStaysUnpublished) {
  BlockPool pool(2);
  const int32_t first = pool.Allocate().value();
  const int32_t second = pool.Allocate().value();
  pool.Publish(first, Key(3));
  pool.Publish(second, Key(3));
  pool.Release(second);
  pool.Release(first);
  EXPECT_EQ(pool.Allocate(), second);
  EXPECT_EQ(pool.Share(Key(3)), first);
}

}  // namespace
}  // namespace outrider
