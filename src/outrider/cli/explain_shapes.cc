#include "outrider/cli/explain_shapes.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ranges>

#include "outrider/base/dtype.h"
#include "outrider/cli/parameter_count.h"

namespace outrider::cli {

namespace {

using Json = nlohmann::ordered_json;

int64_t DenseLayers(const ModelConfig& config) {
  return std::ranges::count_if(config.layers,
                               [](const LayerSpec& layer) { return layer.dense() != nullptr; });
}

/// What the layers' MLPs are; of each kind the first, or all 0.
struct MlpKinds {
  explicit MlpKinds(const ModelConfig& config) {
    for (const LayerSpec& layer : std::views::reverse(config.layers)) {
      if (layer.dense() != nullptr) dense = *layer.dense();
      if (layer.moe() != nullptr) moe = *layer.moe();
    }
  }
  DenseMlpSpec dense;
  MoeSpec moe;
};

std::string QuantizationText(const ModelConfig& config) {
  const Quantization& quantization = config.quantization;
  if (quantization.method.empty()) return std::string(DTypeName(config.dtype));
  const std::string blocks =
      quantization.block_rows > 0
          ? fmt::format(" of {} x {}", quantization.block_rows, quantization.block_cols)
          : "";
  const std::string experts =
      quantization.experts_format
          ? fmt::format(", routed experts {}", StoredFormatName(*quantization.experts_format))
          : "";
  return fmt::format("{}: {}{}{}, the rest {}", quantization.method,
                     quantization.format ? StoredFormatName(*quantization.format) : "not known",
                     blocks, experts, DTypeName(config.dtype));
}

/// "; 18 layers" where a network mixes kinds of attention.
std::string LayersText(const ModelConfig& c, const AttentionSpec& kind) {
  return fmt::format("; {} layers", std::ranges::count_if(c.layers, [&](const LayerSpec& layer) {
                       return layer.attention == kind;
                     }));
}

bool Rotates(const ModelConfig& c, const AttentionSpec& kind) {
  return std::ranges::any_of(c.layers, [&](const LayerSpec& layer) {
    return layer.attention == kind && layer.rotary.turns;
  });
}

/// Facts of every kind of attention that the target's layers have.
Facts AttentionFacts(const ModelConfig& c) {
  std::vector<AttentionSpec> kinds;
  for (const LayerSpec& layer : c.layers) {
    if (std::ranges::find(kinds, layer.attention) == kinds.end()) kinds.push_back(layer.attention);
  }
  Facts facts;
  for (const AttentionSpec& kind : kinds) {
    if (const auto* gqa = std::get_if<GqaSpec>(&kind)) {
      facts.emplace_back(
          gqa->window > 0 ? "heads, window" : "heads",
          fmt::format("{} of {} over {} of keys and values{}", gqa->heads, gqa->head_dim,
                      gqa->kv_heads,
                      gqa->window > 0 ? fmt::format("; the last {} tokens", gqa->window) : ""));
      continue;
    }
    if (const auto* v4 = std::get_if<CompressedSpec>(&kind)) {
      std::string entries;
      if (v4->ratio > 0) entries = fmt::format(", and an entry for every {} before", v4->ratio);
      if (v4->index_heads > 0) {
        entries += fmt::format(", of which {} indexer heads of {} choose {}", v4->index_heads,
                               v4->index_dim, v4->index_top_k);
      }
      facts.emplace_back("heads, window",
                         fmt::format("{} of {} over the last {} tokens{}; query latent {}, output "
                                     "{} x {}",
                                     v4->heads, v4->head_dim, v4->window, entries, v4->q_lora,
                                     v4->output_groups, v4->output_rank));
      continue;
    }
    if (const auto* kda = std::get_if<KdaSpec>(&kind)) {
      facts.emplace_back(
          "linear", fmt::format("{} heads of {}, convolutions of {} rows, decays {}{}", kda->heads,
                                kda->head_dim, kda->conv,
                                kda->decay_bound ? fmt::format("down to exp({})", *kda->decay_bound)
                                                 : "by softplus",
                                LayersText(c, kind)));
      continue;
    }
    const auto& a = std::get<MlaSpec>(kind);
    facts.emplace_back("heads",
                       fmt::format("{}: query and key {} + {}{}, value {}", a.heads, a.nope, a.rope,
                                   Rotates(c, kind) ? " rotated" : "", a.value) +
                           (a.gates_heads ? ", gated" : "") +
                           (kinds.size() > 1 ? LayersText(c, kind) : ""));
    facts.emplace_back("latents", fmt::format("key and value {}, query {}", a.latent,
                                              a.q_lora > 0 ? fmt::to_string(a.q_lora) : "none"));
    if (a.indexer) {
      facts.emplace_back(
          "indexer", fmt::format("{} heads of {}, which choose {} tokens per row", a.indexer->heads,
                                 a.indexer->dim, a.indexer->top_k));
    }
  }
  return facts;
}

Json AttentionJson(const ModelConfig& c) {
  const auto latent = std::ranges::find_if(c.layers, [](const LayerSpec& layer) {
    return std::holds_alternative<MlaSpec>(layer.attention);
  });
  if (latent != c.layers.end()) {
    const auto* a = std::get_if<MlaSpec>(&latent->attention);
    Json object = {{"num_attention_heads", a->heads}, {"qk_nope_head_dim", a->nope},
                   {"qk_rope_head_dim", a->rope},     {"v_head_dim", a->value},
                   {"kv_lora_rank", a->latent},       {"q_lora_rank", a->q_lora}};
    if (a->indexer) {
      object["index_n_heads"] = a->indexer->heads;
      object["index_head_dim"] = a->indexer->dim;
      object["index_topk"] = a->indexer->top_k;
    }
    for (size_t i = 0; i < c.layers.size(); ++i) {
      const auto* kda = std::get_if<KdaSpec>(&c.layers[i].attention);
      if (kda == nullptr) continue;
      object["linear_attention"]["num_heads"] = kda->heads;
      object["linear_attention"]["head_dim"] = kda->head_dim;
      object["linear_attention"]["layers"].push_back(i);
    }
    return object;
  }
  Json layers = Json::array();
  for (const LayerSpec& layer : c.layers) {
    if (const auto* v4 = std::get_if<CompressedSpec>(&layer.attention)) {
      layers.push_back({{"heads", v4->heads},
                        {"kv_heads", 1},
                        {"head_dim", v4->head_dim},
                        {"window", v4->window},
                        {"ratio", v4->ratio},
                        {"index_topk", v4->index_top_k}});
      continue;
    }
    const auto& a = std::get<GqaSpec>(layer.attention);
    layers.push_back({{"heads", a.heads},
                      {"kv_heads", a.kv_heads},
                      {"head_dim", a.head_dim},
                      {"window", a.window}});
  }
  return {{"attention", layers}};
}

std::string ModulesText(const ModelConfig& c) {
  if (!c.dspark) return fmt::format("{} declared", c.num_nextn_predict_layers);
  return fmt::format("a DSpark drafter: {} stages, blocks of {} tokens, Markov rank {}",
                     c.dspark->stages, c.dspark->block_size, c.dspark->markov_rank);
}

}  // namespace

Facts ShapeFacts(const ModelConfig& c) {
  const int64_t dense = DenseLayers(c);
  const LayerSpec& layer = c.layers.front();
  const auto [dense_mlp, moe] = MlpKinds(c);
  const RouterSpec& router = moe.router;
  const ParameterCount parameters = CountParameters(c);
  Facts facts = {{"layers", fmt::format("{}: {} dense, {} with experts", c.num_hidden_layers(),
                                        dense, c.num_hidden_layers() - dense)},
                 {"MTP modules", ModulesText(c)},
                 {"hidden size", fmt::to_string(c.hidden_size)},
                 {"vocabulary", fmt::to_string(c.vocab_size)}};
  for (auto& fact : AttentionFacts(c)) facts.push_back(std::move(fact));
  if (dense > 0) facts.emplace_back("dense MLP", fmt::format("width {}", dense_mlp.width));
  if (layer.residual.streams > 1) {
    facts.emplace_back(
        "residual", fmt::format("{} streams, mixed by hyper-connections", layer.residual.streams));
  }
  if (router.experts > 0) {
    facts.emplace_back(
        "experts", fmt::format("{} routed in {} groups, {} per token from {} groups; {} shared; "
                               "width {}",
                               router.experts, router.groups, router.top_k, router.top_groups,
                               moe.shared_experts, moe.width));
  }
  std::string context = fmt::to_string(c.max_position_embeddings);
  // Layers without compressed entries (DeepSeek-V4) and those with windows (Step-3.5) have none.
  const auto scaled = std::ranges::find_if(c.layers, [](const LayerSpec& other) {
    return other.rotary.yarn.has_value() || other.rotary.llama3.has_value();
  });
  const RotarySpec& rotary = scaled == c.layers.end() ? layer.rotary : scaled->rotary;
  if (const auto& yarn = rotary.yarn) {
    context += fmt::format(" (YaRN, factor {} over {})", yarn->factor,
                           yarn->original_max_position_embeddings);
  }
  if (const auto& llama3 = rotary.llama3) {
    context += fmt::format(" (as Llama 3, factor {} over {})", llama3->factor,
                           llama3->original_max_position_embeddings);
  }
  facts.emplace_back("context", context);
  facts.emplace_back("stored as", QuantizationText(c));
  facts.emplace_back("parameters", fmt::format("{}, {} of them per token; MTP {}",
                                               ParameterCountText(parameters.target),
                                               ParameterCountText(parameters.target_active),
                                               ParameterCountText(parameters.mtp)));
  return facts;
}

Json ShapesJson(const ModelConfig& c) {
  const auto [dense_mlp, moe] = MlpKinds(c);
  Json object = {{"num_hidden_layers", c.num_hidden_layers()},
                 {"num_dense_layers", DenseLayers(c)},
                 {"num_nextn_predict_layers", c.num_nextn_predict_layers},
                 {"hidden_size", c.hidden_size},
                 {"vocab_size", c.vocab_size},
                 {"intermediate_size", dense_mlp.width},
                 {"n_routed_experts", moe.router.experts},
                 {"n_shared_experts", moe.shared_experts},
                 {"num_experts_per_tok", moe.router.top_k},
                 {"moe_intermediate_size", moe.width},
                 {"max_position_embeddings", c.max_position_embeddings}};
  object.update(AttentionJson(c));
  return object;
}

}  // namespace outrider::cli
