#include "outrider/kv/kv_cache.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

TEST(KvCacheTest, LayersFollowEachOther) {
  KvCache cache(3, 5, 16, 24, DType::kBF16);
  const auto distance = cache.layer(2).data - cache.layer(1).data;
  EXPECT_EQ(distance, 5 * 16 * 24 * 2);
  EXPECT_EQ(cache.layer(0).block_size, 16);
  EXPECT_EQ(cache.layer(0).width, 24);
  EXPECT_EQ(cache.layer(1).SlotOffset(17), 17 * 24);
  EXPECT_EQ(KvCache::BytesPerToken(61, 576, DType::kBF16), 70272);  // DeepSeek-V3
}

}  // namespace
}  // namespace outrider
