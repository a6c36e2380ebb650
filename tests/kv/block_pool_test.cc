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

TEST(BlockTableTest, ReservesAllOrNothing) {
  BlockPool pool(4);
  BlockTable table;
  EXPECT_TRUE(table.Reserve(pool, 17, 16));
  EXPECT_EQ(table.blocks().size(), 2U);
  EXPECT_TRUE(table.Reserve(pool, 5, 16));  // never shrinks
  EXPECT_EQ(table.blocks().size(), 2U);
  EXPECT_FALSE(table.Reserve(pool, 16 * 5, 16));
  EXPECT_EQ(table.blocks().size(), 2U);
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_TRUE(table.Reserve(pool, 16 * 4, 16));
  table.Clear(pool);
  EXPECT_EQ(pool.num_free(), 4);
}

}  // namespace
}  // namespace outrider
