#include "outrider/ops/cuda/hopper_support.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <variant>

#include "outrider/attention/row_path.h"
#include "outrider/base/error.h"
#include "outrider/kernels/cuda/moe/router_lanes.h"

namespace outrider::cuda {

namespace {

/// What is asked where `asks` holds.
std::optional<Asked> If(bool asks) {
  return asks ? std::optional<Asked>(std::monostate()) : std::nullopt;
}

template <typename Attention>
const Attention* AttentionOf(const LayerSpec& layer) {
  return std::get_if<Attention>(&layer.attention);
}

/// A rule about one number of layers that have such an attention or MLP.
template <auto kNumber>
struct NumberOf;
template <typename Spec, int64_t Spec::* kNumber>
struct NumberOf<kNumber> {
  static std::optional<Asked> In(const LayerSpec& layer) {
    const Spec* spec = nullptr;
    if constexpr (std::is_same_v<Spec, MoeSpec> || std::is_same_v<Spec, DenseMlpSpec>) {
      spec = std::get_if<Spec>(&layer.mlp);
    } else {
      spec = AttentionOf<Spec>(layer);
    }
    return spec == nullptr ? std::nullopt : std::optional<Asked>(spec->*kNumber);
  }
};

bool RoutesBy(const LayerSpec& layer, RouterMethod method) {
  return layer.moe() != nullptr && layer.moe()->router.method == method;
}

std::string_view ScoringName(RouterScoring scoring) {
  switch (scoring) {
    case RouterScoring::kSoftmax:
      return "softmax";
    case RouterScoring::kSigmoid:
      return "sigmoid";
    case RouterScoring::kSqrtSoftplus:
      return "sqrtsoftplus";
  }
  OUTRIDER_CHECK(false);
}

/// Experts of a row: those that it chooses, and the shared MLP as experts of the routed ones' width
/// if it is a multiple.
int64_t ExpertsOfRow(const MoeSpec& moe) {
  const bool as_experts = moe.shared_width % moe.width == 0;
  return moe.router.top_k + (as_experts ? moe.shared_width / moe.width : 0);
}

/// Calls visit(layer) for every layer, of a drafter too, until it gives something.
template <typename Visit>
auto FirstOfLayers(const AskedNetwork& network, const Visit& visit)
    -> decltype(visit(network.config.layer(0))) {
  const ModelConfig& c = network.config;
  for (int64_t i = 0; i < c.num_hidden_layers() + network.num_mtp_modules; ++i) {
    if (auto found = visit(c.layer(i))) return found;
  }
  if (network.drafter != nullptr) return visit(network.drafter->layers.front());
  return {};
}

bool IsLinear(const LayerSpec& layer) { return AttentionOf<KdaSpec>(layer) != nullptr; }

/// A rule about one number of layers that have an indexer.
template <int64_t IndexerSpec::* kNumber>
std::optional<Asked> IndexerNumber(const LayerSpec& layer) {
  const IndexerSpec* indexer = layer.indexer();
  return indexer == nullptr ? std::nullopt : std::optional<Asked>(indexer->*kNumber);
}

/// Of DeepSeek-V4's numbers.
std::vector<Rule<LayerSpec>> V4Rules() {
  return {
      {"heads of compressed attention", NumberOf<&CompressedSpec::heads>::In, Taken::UpTo(128)},
      {"width of a compressed entry", NumberOf<&CompressedSpec::head_dim>::In, Taken::Only(512)},
      {"rotated values of a compressed entry",
       [](const LayerSpec& s) -> std::optional<Asked> {
         if (AttentionOf<CompressedSpec>(s) == nullptr) return std::nullopt;
         return s.rotary.dims;
       },
       Taken::Only(kHopperRotary)},
      {"q_lora_rank", NumberOf<&CompressedSpec::q_lora>::In, Taken::Multiples(8, 2048),
       "of compressed attention"},
      {"compress_ratios", NumberOf<&CompressedSpec::ratio>::In, Taken::Numbers({0, 4, 128})},
      {"o_lora_rank", NumberOf<&CompressedSpec::output_rank>::In, Taken::Multiples(64)},
      {"index heads of compressed attention", NumberOf<&CompressedSpec::index_heads>::In,
       Taken::Numbers({0, 8, 16, 32, 64})},
      {"width of a compressed index key",
       [](const LayerSpec& s) -> std::optional<Asked> {
         const auto* a = AttentionOf<CompressedSpec>(s);
         if (a == nullptr || a->index_heads == 0) return std::nullopt;
         return a->index_dim;
       },
       Taken::Only(kHopperIndexDim)},
      {"chosen compressed entries", NumberOf<&CompressedSpec::index_top_k>::In,
       Taken::UpTo(kHopperChosen)},
      {"hc_mult",
       [](const LayerSpec& s) -> std::optional<Asked> {
         if (s.residual.streams == 1) return std::nullopt;
         return s.residual.streams;
       },
       Taken::Only(4)},
  };
}

std::vector<Rule<LayerSpec>> MakeLayerRules() {
  std::vector<Rule<LayerSpec>> rules = {
      {"latent attention (MLA)",
       [](const LayerSpec& s) { return If(AttentionOf<MlaSpec>(s) != nullptr); }, Taken::Yes()},
      {"grouped-query attention (Step-3.5)",
       [](const LayerSpec& s) { return If(AttentionOf<GqaSpec>(s) != nullptr); }, Taken::Yes()},
      {"attention to tokens that an indexer chooses (DeepSeek-V3.2, GLM-5)",
       [](const LayerSpec& s) { return If(s.indexer() != nullptr); }, Taken::Yes()},
      {"attention to compressed entries (DeepSeek-V4)",
       [](const LayerSpec& s) { return If(AttentionOf<CompressedSpec>(s) != nullptr); },
       Taken::Yes()},
      {"linear attention (Kimi-Linear, Ling-3.0)",
       [](const LayerSpec& s) { return If(IsLinear(s)); }, Taken::Yes()},
      {"gated heads of latent attention (Ling-3.0)",
       [](const LayerSpec& s) {
         const auto* mla = AttentionOf<MlaSpec>(s);
         return If(mla != nullptr && mla->gates_heads);
       },
       Taken::Yes()},
      {"hyper-connections (DeepSeek-V4)",
       [](const LayerSpec& s) { return If(s.residual.streams > 1); }, Taken::Yes()},
      {"mixtures of experts", [](const LayerSpec& s) { return If(s.moe() != nullptr); },
       Taken::Yes()},
      {"experts by token (DeepSeek-V4)",
       [](const LayerSpec& s) { return If(RoutesBy(s, RouterMethod::kTokenTable)); }, Taken::Yes()},
      // Product::float32.
      {"float32 products of routers, compressors and weights of index heads",
       [](const LayerSpec& s) {
         return If(s.moe() != nullptr || s.indexer() != nullptr ||
                   AttentionOf<CompressedSpec>(s) != nullptr);
       },
       Taken::Yes("with operands rounded to bfloat16")},
      {"kv_lora_rank", NumberOf<&MlaSpec::latent>::In, Taken::Only(kHopperLatent)},
      {"qk_rope_head_dim", NumberOf<&MlaSpec::rope>::In, Taken::Only(kHopperRotary)},
      {"num_attention_heads", NumberOf<&MlaSpec::heads>::In, Taken::UpTo(128),
       "of latent attention"},
      {"qk_nope_head_dim", NumberOf<&MlaSpec::nope>::In, Taken::Multiples(32, 192)},
      {"v_head_dim", NumberOf<&MlaSpec::value>::In, Taken::Multiples(32, 256)},
      {"q_lora_rank", NumberOf<&MlaSpec::q_lora>::In, Taken::Multiples(8, 2048)},
      {"head_dim", NumberOf<&GqaSpec::head_dim>::In, Taken::Only(kHopperHeadDim),
       "of grouped-query attention"},
      {"query heads for each key head",
       [](const LayerSpec& s) -> std::optional<Asked> {
         const auto* gqa = AttentionOf<GqaSpec>(s);
         if (gqa == nullptr) return std::nullopt;
         return gqa->heads / gqa->kv_heads;
       },
       Taken::UpTo(kHopperQueryHeads)},
      {"rotated values of a head",
       [](const LayerSpec& s) -> std::optional<Asked> {
         if (AttentionOf<GqaSpec>(s) == nullptr) return std::nullopt;
         return s.rotary.dims;
       },
       Taken::Multiples(8), "of grouped-query attention"},
      {"head_dim", NumberOf<&KdaSpec::head_dim>::In, Taken::Only(kHopperHeadDim),
       "of linear attention"},
      {"short_conv_kernel_size", NumberOf<&KdaSpec::conv>::In, Taken::Only(kHopperConv)},
      {"n_routed_experts",
       [](const LayerSpec& s) -> std::optional<Asked> {
         if (s.moe() == nullptr) return std::nullopt;
         return s.moe()->router.experts;
       },
       Taken::Multiples(8, 512)},
      {"groups of experts (n_group) that do not share the 32 lanes of a warp evenly",
       [](const LayerSpec& s) {
         if (s.moe() == nullptr) return If(false);
         const RouterSpec& router = s.moe()->router;
         return If(
             !GroupsFillLanes(static_cast<int>(router.experts), static_cast<int>(router.groups)));
       },
       Taken::No()},
      {"moe_intermediate_size", NumberOf<&MoeSpec::width>::In, Taken::Multiples(8)},
      {"width of the shared experts", NumberOf<&MoeSpec::shared_width>::In, Taken::Multiples(8)},
      {"experts of a token, the shared ones included",
       [](const LayerSpec& s) -> std::optional<Asked> {
         if (s.moe() == nullptr) return std::nullopt;
         return ExpertsOfRow(*s.moe());
       },
       Taken::UpTo(32)},
      {"scoring_func",
       [](const LayerSpec& s) -> std::optional<Asked> {
         if (s.moe() == nullptr) return std::nullopt;
         return ScoringName(s.moe()->router.scoring);
       },
       Taken::Names({"softmax", "sigmoid", "sqrtsoftplus"})},
      {"intermediate_size", NumberOf<&DenseMlpSpec::width>::In, Taken::Multiples(8)},
      {"index_n_heads", IndexerNumber<&IndexerSpec::heads>, Taken::Numbers({8, 16, 32, 64})},
      {"index_head_dim", IndexerNumber<&IndexerSpec::dim>, Taken::Only(kHopperIndexDim)},
      {"index_topk", IndexerNumber<&IndexerSpec::top_k>, Taken::UpTo(kHopperChosen)},
  };
  std::ranges::move(V4Rules(), std::back_inserter(rules));
  return rules;
}

}  // namespace

std::span<const Rule<LayerSpec>> HopperLayerRules() {
  static const std::vector<Rule<LayerSpec>> rules = MakeLayerRules();
  return rules;
}

std::span<const Rule<ModelConfig>> HopperModelRules() {
  static const std::vector<Rule<ModelConfig>> rules = {
      {"hidden_size", [](const ModelConfig& c) { return std::optional<Asked>(c.hidden_size); },
       Taken::Multiples(8, 8192)},
      {"vocab_size", [](const ModelConfig& c) { return std::optional<Asked>(c.vocab_size); },
       Taken::UpTo(400'000)},
  };
  return rules;
}

namespace {

/// Whether the entries of an EAGLE-3 drafter with latent attention are latent beside those of the
/// network (Eagle3DraftModel).
bool HasLatentEntries(const ModelConfig& config) {
  const KvCacheForm form = RowPathsOf(config, KvCacheForm::kLatent).latent_form();
  return form == KvCacheForm::kLatent &&
         std::ranges::any_of(config.layers, [](const LayerSpec& layer) {
           return AttentionOf<MlaSpec>(layer) != nullptr;
         });
}

std::vector<Rule<AskedNetwork>> MakeNetworkRules() {
  return {
      {"an EAGLE-3 drafter with latent attention (MLA) for a network without",
       [](const AskedNetwork& n) {
         return If(n.drafter != nullptr &&
                   AttentionOf<MlaSpec>(n.drafter->layers.front()) != nullptr &&
                   !HasLatentEntries(n.config));
       },
       Taken::No()},
      {"a drafter of blocks (DSpark)",
       [](const AskedNetwork& n) { return If(n.config.dspark && n.num_mtp_modules > 0); },
       Taken::Yes()},
  };
}

}  // namespace

std::span<const Rule<AskedNetwork>> HopperNetworkRules() {
  static const std::vector<Rule<AskedNetwork>> rules = MakeNetworkRules();
  return rules;
}

std::optional<Lack> LackOnHopper(const AskedNetwork& network) {
  std::optional<Lack> lack = FirstOfLayers(
      network, [](const LayerSpec& layer) { return Supports(HopperLayerRules(), layer); });
  if (!lack) lack = Supports(HopperNetworkRules(), network);
  if (!lack) lack = Supports(HopperModelRules(), network.config);
  if (!lack && network.drafter != nullptr) lack = Supports(HopperModelRules(), *network.drafter);
  return lack;
}

std::vector<std::string> OwnWaysOfHopper(const AskedNetwork& network) {
  std::vector<std::string> ways;
  FirstOfLayers(network, [&](const LayerSpec& layer) -> std::optional<Lack> {
    for (std::string& way : OwnWays(HopperLayerRules(), layer)) {
      if (std::ranges::find(ways, way) == ways.end()) ways.push_back(std::move(way));
    }
    return std::nullopt;
  });
  return ways;
}

void CheckRunsOnHopper(const AskedNetwork& network) {
  const std::optional<Lack> lack = LackOnHopper(network);
  if (!lack) return;
  if (lack->takes.empty()) {
    throw InvalidArgument("{} does not run on the GPU, which lacks: {}; --device cpu runs it",
                          network.config.model_type, lack->what);
  }
  throw InvalidArgument(
      "{} with {} does not run on the GPU: the kernels take {}; --device cpu runs it",
      network.config.model_type, lack->what, lack->takes);
}

}  // namespace outrider::cuda
