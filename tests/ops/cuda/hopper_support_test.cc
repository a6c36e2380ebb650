// What the rules say of a Hopper GPU is what its table of operations has.
#include "outrider/ops/cuda/hopper_support.h"

#include <gtest/gtest.h>

#include <type_traits>

#include "outrider/ops/block_drafts.h"
#include "outrider/ops/compressed.h"
#include "outrider/ops/cuda/cuda_ops.h"
#include "outrider/ops/delta.h"
#include "outrider/ops/hyper.h"
#include "outrider/ops/sparse.h"

namespace outrider::cuda {
namespace {

template <typename Facet>
constexpr bool kGpuHas = std::is_base_of_v<Facet, CudaOps>;

LayerSpec LatentLayer() {
  return {.attention = MlaSpec{.heads = 16, .latent = 512, .nope = 128, .rope = 64, .value = 128},
          .rotary = {.dims = 64},
          .mlp = MoeSpec{.router = {.experts = 64, .top_k = 8}, .width = 64}};
}

LayerSpec LinearLayer() {
  LayerSpec layer = LatentLayer();
  layer.attention = KdaSpec{.heads = 16, .head_dim = 128, .conv = 4};
  return layer;
}

bool Runs(const LayerSpec& layer) { return !Supports(HopperLayerRules(), layer); }

TEST(HopperSupport, LayersRunWhereTheGpuHasTheirFacets) {
  EXPECT_EQ(Runs(LatentLayer()), kGpuHas<MlaOps> && kGpuHas<MoeOps>);
  LayerSpec layer = LatentLayer();
  layer.attention = GqaSpec{.heads = 64, .kv_heads = 8, .head_dim = 128};
  EXPECT_EQ(Runs(layer), kGpuHas<PerHeadOps>);
  layer = LatentLayer();
  std::get<MlaSpec>(layer.attention).indexer = IndexerSpec{.heads = 64, .dim = 128, .top_k = 2048};
  EXPECT_EQ(Runs(layer), kGpuHas<SparseOps>);
  layer = LatentLayer();
  layer.attention = CompressedSpec{.heads = 64, .head_dim = 512};
  EXPECT_EQ(Runs(layer), kGpuHas<CompressedOps>);
  layer = LinearLayer();
  EXPECT_EQ(Runs(layer), kGpuHas<DeltaOps>);
  std::get<KdaSpec>(layer.attention).head_dim = 64;
  EXPECT_FALSE(Runs(layer));
  layer = LatentLayer();
  std::get<MlaSpec>(layer.attention).gates_heads = true;
  EXPECT_EQ(Runs(layer), kGpuHas<DeltaOps>);
  layer = LatentLayer();
  layer.residual.streams = 4;
  EXPECT_EQ(Runs(layer), kGpuHas<HyperOps>);
  layer = LatentLayer();
  std::get<MoeSpec>(layer.mlp).router.method = RouterMethod::kTokenTable;
  EXPECT_EQ(Runs(layer), kGpuHas<TokenRouterOps>);
}

// Of models as published, and of others.
TEST(HopperSupport, GroupsOfExpertsFillLanesOfAWarp) {
  const auto runs = [](int64_t experts, int64_t groups) {
    LayerSpec layer = LatentLayer();
    std::get<MoeSpec>(layer.mlp).router.experts = experts;
    std::get<MoeSpec>(layer.mlp).router.groups = groups;
    return Runs(layer);
  };
  EXPECT_TRUE(runs(256, 8)) << "DeepSeek-V3";
  EXPECT_TRUE(runs(160, 8)) << "DeepSeek-V2";
  EXPECT_TRUE(runs(512, 8)) << "Ling-3.0-flash";
  EXPECT_TRUE(runs(384, 1)) << "Kimi-K2";
  EXPECT_TRUE(runs(24, 1));
  EXPECT_TRUE(runs(64, 32));
  EXPECT_FALSE(runs(24, 8)) << "three lanes";
  EXPECT_FALSE(runs(256, 64)) << "more groups than lanes";
  EXPECT_TRUE(runs(96, 2)) << "16 lanes of three experts";
}

TEST(HopperSupport, DraftersOfBlocksRunWhereTheGpuHasTheirFacet) {
  ModelConfig config;
  config.layers = {LatentLayer()};
  config.mtp_layer = LatentLayer();
  const auto runs = [&] {
    return !Supports(HopperNetworkRules(), AskedNetwork{.config = config, .num_mtp_modules = 1});
  };
  EXPECT_TRUE(runs());
  config.dspark.emplace();
  EXPECT_EQ(runs(), kGpuHas<BlockDraftOps>);
}

TEST(HopperSupport, LayersMayDifferInThePathOfTheirRows) {
  ModelConfig config;
  config.layers = {LinearLayer(), LatentLayer(), LinearLayer(), LatentLayer()};
  const auto runs = [&] { return !Supports(HopperNetworkRules(), AskedNetwork{.config = config}); };
  EXPECT_TRUE(runs());
  std::get<MlaSpec>(config.layers[3].attention).value = 64;
  EXPECT_TRUE(runs()) << "of another shape";
  std::get<MlaSpec>(config.layers[3].attention).indexer.emplace();
  EXPECT_TRUE(runs()) << "listed";
  config.layers[3].attention = GqaSpec{.heads = 64, .kv_heads = 8, .head_dim = 128};
  EXPECT_TRUE(runs()) << "per head";
}

// Its entries hold every head beside grouped queries, which the GPU's latent attention does not
// read.
TEST(HopperSupport, Eagle3DraftersStandBesideLatentAttention) {
  ModelConfig config;
  config.layers = {LinearLayer(), LatentLayer()};
  ModelConfig drafter;
  drafter.layers = {LatentLayer()};
  const auto runs = [&] {
    return !Supports(HopperNetworkRules(), AskedNetwork{.config = config, .drafter = &drafter});
  };
  EXPECT_TRUE(runs());
  std::get<MlaSpec>(config.layers[1].attention).indexer.emplace();
  EXPECT_TRUE(runs());
  config.layers.push_back(LatentLayer());
  config.layers[2].attention = GqaSpec{.heads = 64, .kv_heads = 8, .head_dim = 128};
  EXPECT_EQ(runs(), kGpuHas<PerHeadMlaOps>) << "beside chosen tokens";
  config.layers[1] = LatentLayer();
  EXPECT_TRUE(runs()) << "the network has latent entries, too";
  config.layers.erase(config.layers.begin() + 1);
  EXPECT_EQ(runs(), kGpuHas<PerHeadMlaOps>);
  config.layers[1].attention = CompressedSpec();
  EXPECT_FALSE(runs());
}

}  // namespace
}  // namespace outrider::cuda
