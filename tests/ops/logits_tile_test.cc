#include "outrider/ops/logits_tile.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

TEST(LogitsTileTest, RowsFillItsBytes) {
  EXPECT_EQ(LogitsTileRows(1), 32 << 20);
  EXPECT_EQ(LogitsTileRows(2048), 16384);
  EXPECT_EQ(LogitsTileRows(100000), 335) << "whole rows";
  EXPECT_EQ(LogitsTileRows(1000, 4000 * 300), 300);
}

TEST(LogitsTileTest, HasManyRowsOverALargeVocabulary) {
  EXPECT_EQ(LogitsTileRows(131072), 256);
  EXPECT_EQ(LogitsTileRows(163840), 256);
  EXPECT_EQ(LogitsTileRows(1000, 0), 256);
}

}  // namespace
}  // namespace outrider
