#include "outrider/attention/row_path.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

TEST(RowPath, OfLatentAttentionFollowsTheForm) {
  LayerSpec layer;
  layer.attention = MlaSpec();
  const RowPaths latent = RowPathsOf(layer, KvCacheForm::kLatent);
  EXPECT_TRUE(latent.Has(RowPath::kAbsorbed) && latent.Has(RowPath::kExpanded));
  EXPECT_TRUE(latent.ByRole());
  EXPECT_FALSE(latent.ForAll());
  EXPECT_EQ(latent.latent_form(), KvCacheForm::kLatent);
  const RowPaths heads = RowPathsOf(layer, KvCacheForm::kHeads);
  EXPECT_EQ(heads, RowPaths(RowPath::kPerHead));
  EXPECT_FALSE(heads.ByRole());
  EXPECT_TRUE(heads.ForAll());
  EXPECT_EQ(heads.latent_form(), KvCacheForm::kHeads);
}

TEST(RowPath, OfOtherAttentionIsOneInAnyForm) {
  LayerSpec layer;
  for (const KvCacheForm form : kAllKvCacheForms) {
    layer.attention = GqaSpec();
    EXPECT_EQ(RowPathsOf(layer, form), RowPaths(RowPath::kPerHead));
    layer.attention = CompressedSpec();
    EXPECT_EQ(RowPathsOf(layer, form), RowPaths(RowPath::kListed));
    layer.attention.emplace<MlaSpec>().indexer.emplace();
    EXPECT_EQ(RowPathsOf(layer, form), RowPaths(RowPath::kListed));
  }
  EXPECT_EQ(RowPaths(RowPath::kListed).latent_form(), KvCacheForm::kLatent);
}

TEST(RowPath, OfANetworkAreThoseOfAllItsLayers) {
  ModelConfig config;
  config.layers.resize(3);
  config.layers[0].attention = KdaSpec();
  config.layers[1].attention.emplace<MlaSpec>().indexer.emplace();
  config.layers[2].attention = MlaSpec();
  const RowPaths listed(RowPath::kListed);
  for (const KvCacheForm form : kAllKvCacheForms) {
    EXPECT_EQ(RowPathsOf(config, form), listed | form);
    EXPECT_EQ(RowPathsOf(config, form).latent_form(), form);
  }
  config.layers.pop_back();
  config.mtp_layer.attention = GqaSpec();
  EXPECT_EQ(RowPathsOf(config, KvCacheForm::kLatent), listed) << "there is no module";
  config.num_nextn_predict_layers = 1;
  EXPECT_EQ(RowPathsOf(config, KvCacheForm::kLatent), listed | RowPaths(RowPath::kPerHead));
}

TEST(RowPathDeathTest, LinearAttentionHasNone) {
  LayerSpec layer;
  layer.attention = KdaSpec();
  EXPECT_DEATH(RowPathsOf(layer, KvCacheForm::kLatent), "keeps no entries");
}

}  // namespace
}  // namespace outrider
