#include "outrider/checkpoint/hybrid_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "outrider/base/error.h"

namespace outrider {

namespace {

constexpr int64_t kMostOfHeads = 65536;
/// The epsilon of q_a_layernorm and kv_a_layernorm: the default of transformers' classes, which no
/// config changes.
constexpr double kHybridLatentEps = 1e-6;

}  // namespace

std::string_view SpellingOf(ConfigReader& text, std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    if (text.Contains(key)) return key;
  }
  return *keys.begin();
}

MlaSpec ParseHybridLatentAttention(ConfigReader& text) {
  MlaSpec mla;
  mla.heads = text.Integer("num_attention_heads", 1, kMostOfHeads);
  if (text.Contains("q_lora_rank") && text.Find("q_lora_rank") == nullptr) {
    mla.q_lora = 0;
  } else {
    mla.q_lora = text.Integer("q_lora_rank", 1, kMostOfADimension);
  }
  mla.latent = text.Integer("kv_lora_rank", 1, kMostOfADimension);
  mla.nope = text.Integer("qk_nope_head_dim", 1, kMostOfHeads);
  mla.rope = text.Integer("qk_rope_head_dim", 2, kMostOfHeads);
  mla.value = text.Integer("v_head_dim", 1, kMostOfHeads);
  if (mla.rope % 2 != 0) {
    text.Refuse("qk_rope_head_dim", "an even number is needed, as pairs are rotated");
  }
  mla.softmax_scale = 1 / std::sqrt(static_cast<double>(mla.query_width()));
  mla.latent_norm_eps = kHybridLatentEps;
  return mla;
}

KdaSpec ParseKda(ConfigReader& text, std::string_view heads, std::string_view head_dim) {
  constexpr int64_t kMostConv = 16;
  KdaSpec kda;
  kda.heads = text.Integer(heads, 1, kMostOfHeads);
  kda.head_dim = text.Integer(head_dim, 1, 4096);
  kda.conv = text.Integer("short_conv_kernel_size", 1, kMostConv);
  return kda;
}

void ParseHybridExperts(ConfigReader& text, std::string_view groups, MoeSpec& moe) {
  RouterSpec& router = moe.router;
  router.scoring = RouterScoring::kSigmoid;
  router.method = RouterMethod::kNoAuxTc;
  if (router.top_k > router.experts) {
    text.Refuse(SpellingOf(text, {"num_experts_per_token", "num_experts_per_tok"}),
                fmt::format("there are {} experts", router.experts));
  }
  router.scaling_factor = text.Number("routed_scaling_factor", 1e-6, 1e6);
  moe.width = text.Integer("moe_intermediate_size", 1, kMostOfADimension);
  moe.shared_experts = text.Integer("num_shared_experts", 0, 1024, 0);
  moe.shared_width = moe.shared_experts * moe.width;
  router.groups = text.Integer(groups, 1, router.experts, 1);
  router.top_groups = text.Integer("topk_group", 1, router.groups, 1);
  const int64_t group_size = router.experts / router.groups;
  if (router.experts % router.groups != 0 || (router.groups > 1 && group_size < 2)) {
    text.Refuse(groups, fmt::format("it must divide the {} experts into groups of two or more",
                                    router.experts));
  } else if (router.top_k > router.top_groups * group_size) {
    text.Refuse("topk_group", fmt::format("the chosen groups hold {} experts, and {} are chosen",
                                          router.top_groups * group_size, router.top_k));
  }
}

void CheckHybridLayers(ConfigReader& text, std::string_view key, const ModelConfig& config) {
  const auto linear = std::ranges::count_if(config.layers, [](const LayerSpec& layer) {
    return std::holds_alternative<KdaSpec>(layer.attention);
  });
  if (linear == 0 || linear == config.num_hidden_layers()) {
    text.Refuse(key, fmt::format("layers of latent and of linear attention are needed, and {} of "
                                 "{} are linear",
                                 linear, config.num_hidden_layers()));
  }
}

}  // namespace outrider
