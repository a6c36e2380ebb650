// What the two forms of the cache cost, and which one a model gets.
#include "outrider/kv/cache_form.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

constexpr CacheShape kTiny = {.heads = 8, .latent = 512, .nope = 64, .rope = 64, .value = 64};
constexpr CacheShape kV2Lite = {.heads = 16, .latent = 512, .nope = 128, .rope = 64, .value = 128};
constexpr CacheShape kV3 = {.heads = 128, .latent = 512, .nope = 128, .rope = 64, .value = 128};
constexpr CacheShape kKimi = {.heads = 64, .latent = 512, .nope = 128, .rope = 64, .value = 128};
constexpr CacheShape kGlmFlash = {
    .heads = 20, .latent = 512, .nope = 192, .rope = 64, .value = 256};

TEST(KvCacheFormTest, NumbersPerToken) {
  EXPECT_EQ(CacheWidth(KvCacheForm::kLatent, kTiny), 576);
  EXPECT_EQ(CacheWidth(KvCacheForm::kHeads, kTiny), 1088);
  EXPECT_EQ(CacheWidth(KvCacheForm::kLatent, kV3), 576);
  EXPECT_EQ(CacheWidth(KvCacheForm::kHeads, kV2Lite), 4160);
}

TEST(KvCacheFormTest, MultiplyAddsPerKey) {
  EXPECT_EQ(MultiplyAddsPerKey(KvCacheForm::kLatent, kTiny), 8704);
  EXPECT_EQ(MultiplyAddsPerKey(KvCacheForm::kHeads, kTiny), 1536);
  EXPECT_EQ(MultiplyAddsPerKey(KvCacheForm::kLatent, kV2Lite), 17408);
  EXPECT_EQ(MultiplyAddsPerKey(KvCacheForm::kHeads, kV2Lite), 5120);
}

TEST(KvCacheFormTest, SmallModelsGetHeadsPublishedOnesTheLatent) {
  EXPECT_EQ(ChooseKvCacheForm(kTiny), KvCacheForm::kHeads);
  for (const CacheShape& shape : {kV2Lite, kV3, kKimi, kGlmFlash}) {
    EXPECT_EQ(ChooseKvCacheForm(shape), KvCacheForm::kLatent) << shape.heads;
  }
}

TEST(KvCacheFormTest, TheThresholdIsMultiplyAddsPerNumberAdded) {
  // 2 heads and P = V: saved 4 L - 4 P multiply-adds, added 4 P - L numbers.
  CacheShape shape = {.heads = 2, .latent = 90, .nope = 30, .rope = 8, .value = 30};
  EXPECT_EQ(ChooseKvCacheForm(shape), KvCacheForm::kHeads);  // saved 240, added 30: 8 each
  shape.latent = 89;
  EXPECT_EQ(ChooseKvCacheForm(shape), KvCacheForm::kLatent);  // 236, 31
  shape.latent = 130;
  EXPECT_EQ(ChooseKvCacheForm(shape), KvCacheForm::kHeads);  // smaller, and less to do
}

}  // namespace
}  // namespace outrider
