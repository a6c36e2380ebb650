#include "outrider/kv/kv_cache.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

TEST(KvCacheTest, APageHoldsABlockOfAllLayers) {
  const NetworkCache network{.groups = {{.name = "full"}},
                             .layers = std::vector<CacheLayerSpec>(3, {0, 24})};
  KvCache cache(MakeCacheConfig(network, DType::kBF16, 16, 5), network.layers, DType::kBF16);
  EXPECT_EQ(cache.layer(2).data - cache.layer(1).data, 16 * 24 * 2);
  EXPECT_EQ(cache.layer(0).block_size, 16);
  EXPECT_EQ(cache.layer(0).width, 24);
  EXPECT_EQ(cache.layer(1).SlotOffset(17), 3 * 16 * 24 + 24);
  EXPECT_EQ(BytesPerToken(cache.config().groups), 3 * 24 * 2);
}

TEST(KvCacheTest, GroupsShareThePages) {
  const CacheConfig config{.groups = {{.name = "full", .tokens_per_block = 8},
                                      {.name = "window",
                                       .kind = CacheGroupKind::kSlidingWindow,
                                       .tokens_per_block = 8,
                                       .window = 20},
                                      {.name = "compressed", .ratio = 4, .tokens_per_block = 32}},
                           .num_pages = 5};
  KvCache cache(config, {{0, 16}, {1, 16}, {2, 4}, {1, 16}}, DType::kF32);
  // The window's two layers have the largest block: 2 * 8 * 16 floats.
  EXPECT_EQ(cache.config().PageBytes(), 2 * 8 * 16 * 4);
  for (int32_t layer = 0; layer < 4; ++layer) {
    EXPECT_EQ(cache.layer(layer).block_stride, 2 * 8 * 16);
  }
  EXPECT_EQ(cache.layer(1).data, cache.layer(0).data);
  EXPECT_EQ(cache.layer(3).data - cache.layer(1).data, 8 * 16 * 4);
  EXPECT_EQ(cache.layer(2).block_size, 8);
  EXPECT_EQ(cache.layer(2).group, 2);
  EXPECT_EQ(BytesPerToken(cache.config().groups), 16 * 4 + 2 * 16 * 4 + 4 * 4 / 4);
}

TEST(KvCacheTest, BlocksOfAllGroupsFillAPageAsWellAsTheyCan) {
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
