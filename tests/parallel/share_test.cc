#include "outrider/parallel/share.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

TEST(ShareTest, SharesAreInOrderAndCoverEverything) {
  for (const Cut cut : {Cut::kInner, Cut::kRows}) {
    for (int32_t ranks = 1; ranks <= 8; ++ranks) {
      for (int64_t size = ranks; size < 2000; size += 1 + size / 7) {
        int64_t end = 0;
        for (int32_t rank = 0; rank < ranks; ++rank) {
          const Share share = ShareOf(cut, size, {rank, ranks});
          EXPECT_EQ(share.first, end);
          EXPECT_GT(share.count, 0) << size << " over " << ranks;
          end = share.end();
        }
        EXPECT_EQ(end, size);
      }
    }
  }
}

TEST(ShareTest, BlocksAreWhole) {
  // 18432 = 144 blocks of 128 over 8 ranks.
  EXPECT_EQ(ShareOf(Cut::kInner, 18432, {3, 8}), (Share{3 * 2304, 2304}));
  // 12 blocks of 128 over 8 ranks: some have two, some one.
  EXPECT_EQ(ShareOf(Cut::kInner, 1536, {0, 8}), (Share{0, 128}));
  EXPECT_EQ(ShareOf(Cut::kInner, 1536, {1, 8}), (Share{128, 256}));
  // 256 has two blocks of 128: over 4 ranks they are of 16.
  EXPECT_EQ(ShareOf(Cut::kRows, 256, {2, 4}), (Share{128, 64}));
  EXPECT_EQ(ShareOf(Cut::kRows, 20, {1, 2}), (Share{16, 4}));
  EXPECT_EQ(ShareOf(Cut::kRows, 8, {1, 4}), (Share{2, 2}));
}

TEST(ShareTest, FewerRanksHavePartsThatFit) {
  const auto whole_blocks = [](const Share& share) {
    return share.first % kCutBlock == 0 || share.first % kCutBlock + share.count <= kCutBlock;
  };
  // Five blocks of 128 over 8 ranks are cut into parts of 80; over 5 to 2 ranks into blocks.
  EXPECT_FALSE(whole_blocks(ShareOf(Cut::kInner, 640, {1, 8})));
  EXPECT_EQ(FewerRanks(Cut::kInner, 640, 8, whole_blocks), 5);
  EXPECT_EQ(FewerRanks(Cut::kInner, 640, 5, whole_blocks), 4);
  // Heads are equal parts: 6 over 4 ranks are not, over 3 they are.
  const auto any = [](const Share&) { return true; };
  EXPECT_EQ(FewerRanks(Cut::kHeads, 6, 5, any), 3);
  EXPECT_EQ(FewerRanks(Cut::kRows, 640, 8, [](const Share& s) { return s.count == 640; }), 1);
}

TEST(ShareTest, HeadsAreEqualPartsAndNoneIsAll) {
  EXPECT_EQ(ShareOf(Cut::kHeads, 20 * 192, {3, 4}), (Share{15 * 192, 5 * 192}));
  EXPECT_EQ(ShareOf(Cut::kNone, 7, {3, 4}), (Share{0, 7}));
  EXPECT_DEATH(ShareOf(Cut::kHeads, 10, {0, 4}), "10 over 4 ranks");
}

}  // namespace
}  // namespace outrider
