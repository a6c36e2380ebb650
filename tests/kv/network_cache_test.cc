#include "outrider/kv/network_cache.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

TEST(NetworkCacheTest, BlocksOfAllGroupsFillAPageAsWellAsTheyCan) {
  // 12 layers of full history and 36 with a window, as Step-3.5-Flash has with its modules.
  std::vector<CacheGroupSpec> groups = {
      {.name = "full"}, {.name = "window", .kind = CacheGroupKind::kSlidingWindow, .window = 512}};
  std::vector<CacheLayerSpec> layers(12, {0, 2048});
  layers.resize(48, {1, 2048});
  SizeGroups(groups, layers, DType::kBF16);
  ChooseBlockSizes(groups, 64);
  EXPECT_EQ(groups[0].tokens_per_block, 192);
  EXPECT_EQ(groups[1].tokens_per_block, 64);
  EXPECT_EQ(groups[0].bytes_per_block(), groups[1].bytes_per_block());
  // Without modules there are 33: the nearest multiple.
  layers.resize(45);
  SizeGroups(groups, layers, DType::kBF16);
  ChooseBlockSizes(groups, 64);
  EXPECT_EQ(groups[0].tokens_per_block, 192);
  EXPECT_EQ(groups[1].tokens_per_block, 64);
  // A group alone has what is asked for.
  groups.resize(1);
  layers.resize(12);
  SizeGroups(groups, layers, DType::kBF16);
  ChooseBlockSizes(groups, 64);
  EXPECT_EQ(groups[0].tokens_per_block, 64);
}

}  // namespace
}  // namespace outrider
