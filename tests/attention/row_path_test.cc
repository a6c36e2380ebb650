#include "outrider/attention/row_path.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

TEST(RowPath, OfLatentAttentionFollowsTheForm) {
  LayerSpec layer;
  layer.attention = MlaSpec();
  const RowPaths latent = RowPathsOf(layer, KvCacheForm::kLatent);
  EXPECT_EQ(latent.generated, RowPath::kAbsorbed);
  EXPECT_EQ(latent.prompt, RowPath::kExpanded);
  EXPECT_FALSE(latent.AreOne());
  const RowPaths heads = RowPathsOf(layer, KvCacheForm::kHeads);
  EXPECT_EQ(heads.generated, RowPath::kPerHead);
  EXPECT_TRUE(heads.AreOne());
}

TEST(RowPath, OfOtherAttentionIsOneInAnyForm) {
  LayerSpec layer;
  for (const KvCacheForm form : kAllKvCacheForms) {
    layer.attention = GqaSpec();
    EXPECT_EQ(RowPathsOf(layer, form).prompt, RowPath::kPerHead);
    EXPECT_TRUE(RowPathsOf(layer, form).AreOne());
    layer.attention = CompressedSpec();
    EXPECT_EQ(RowPathsOf(layer, form).prompt, RowPath::kListed);
    EXPECT_TRUE(RowPathsOf(layer, form).AreOne());
    layer.attention.emplace<MlaSpec>().indexer.emplace();
    EXPECT_EQ(RowPathsOf(layer, form).generated, RowPath::kListed);
    EXPECT_TRUE(RowPathsOf(layer, form).AreOne());
  }
}

TEST(RowPathDeathTest, LinearAttentionHasNone) {
  LayerSpec layer;
  layer.attention = KdaSpec();
  EXPECT_DEATH(RowPathsOf(layer, KvCacheForm::kLatent), "keeps no entries");
}

}  // namespace
}  // namespace outrider
