#include "outrider/kv/network_cache.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

CacheGroupSpec Window(int32_t window) {
  return {.name = "window", .kind = CacheGroupKind::kSlidingWindow, .window = window};
}

TEST(NetworkCacheTest, BlocksOfAllGroupsFillAPageAsWellAsTheyCan) {
  // 12 layers of full history and 36 with a window, as Step-3.5-Flash has with its modules.
  std::vector<CacheGroupSpec> groups = {{.name = "full"}, Window(512)};
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

TEST(NetworkCacheTest, AGroupOfFullHistoryFillsItsPagesAndWindowsWhatFits) {
  // As DeepSeek-V4-Flash in bfloat16 without draft modules: 43 windows, 21 layers compressed by 4
  // with index keys, 20 by 128, and the rows that they are pooled from.
  std::vector<CacheGroupSpec> groups = {Window(128), {.name = "full"}, Window(8)};
  std::vector<CacheLayerSpec> layers(43, {0, 512});
  layers.insert(layers.end(), 20, {0, 1024, 1, CacheUse::kState});
  layers.insert(layers.end(), 21, {1, 512, 4});
  layers.insert(layers.end(), 21, {1, 128, 4});
  layers.insert(layers.end(), 20, {1, 512, 128});
  layers.insert(layers.end(), 21, {2, 2048, 1, CacheUse::kState});
  layers.insert(layers.end(), 21, {2, 512, 1, CacheUse::kState});
  SizeGroups(groups, layers, DType::kBF16);
  EXPECT_EQ(groups[1].unit_tokens, 128);
  EXPECT_EQ(groups[1].unit_bytes, 21 * 32 * 640 * 2 + 20 * 512 * 2);
  ChooseBlockSizes(groups, 64);
  EXPECT_EQ(groups[1].tokens_per_block, 256);
  EXPECT_EQ(groups[0].tokens_per_block, 8);
  EXPECT_EQ(groups[2].tokens_per_block, 8);
  CacheConfig config{.groups = groups, .num_pages = 1};
  config.Check();
  EXPECT_EQ(config.PageBytes(), groups[1].bytes_per_block());
  // Blocks are whole entries, however few tokens are asked for.
  ChooseBlockSizes(groups, 1);
  EXPECT_EQ(groups[1].tokens_per_block, 128);
  // Windows that take less than full history: longer blocks.
  groups = {Window(512), {.name = "full"}};
  layers.assign(4, {0, 64});
  layers.resize(16, {1, 64});
  SizeGroups(groups, layers, DType::kF32);
  ChooseBlockSizes(groups, 64);
  EXPECT_EQ(groups[1].tokens_per_block, 64);
  EXPECT_EQ(groups[0].tokens_per_block, 128);
}

TEST(NetworkCacheTest, WindowsAloneHaveBlocksToo) {
  std::vector<CacheGroupSpec> groups = {Window(8), Window(128)};
  const std::vector<CacheLayerSpec> layers = {{0, 300}, {1, 100}, {1, 100}};
  SizeGroups(groups, layers, DType::kF32);
  ChooseBlockSizes(groups, 16);
  EXPECT_EQ(groups[1].tokens_per_block, 32);
  EXPECT_EQ(groups[0].tokens_per_block, 16);
}

}  // namespace
}  // namespace outrider
