#include "outrider/checkpoint/rank_config.h"

#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "outrider/base/error.h"

namespace outrider {

namespace {

/// Something that is divided evenly among ranks.
struct Divided {
  int64_t count = 0;
  std::string what;
};

/// What of a layer must be a multiple of the number of ranks.
std::vector<Divided> DividedEvenly(const LayerSpec& layer) {
  if (const auto* mla = std::get_if<MlaSpec>(&layer.attention)) return {{mla->heads, "heads"}};
  if (const auto* kda = std::get_if<KdaSpec>(&layer.attention)) {
    return {{kda->heads, "heads of linear attention"}};
  }
  if (const auto* gqa = std::get_if<GqaSpec>(&layer.attention)) {
    return {{gqa->heads, "heads"}, {gqa->kv_heads, "heads of keys and values"}};
  }
  const auto& compressed = std::get<CompressedSpec>(layer.attention);
  return {{compressed.heads, "heads"}, {compressed.output_groups, "groups of heads"}};
}

/// Widths of which every rank has at least one column.
std::vector<Divided> DividedInBlocks(const LayerSpec& layer) {
  if (const DenseMlpSpec* dense = layer.dense()) return {{dense->width, "columns of an MLP"}};
  std::vector<Divided> widths = {{layer.moe()->width, "columns of an expert"}};
  if (layer.moe()->shared_width > 0) {
    widths.push_back({layer.moe()->shared_width, "columns of the shared experts"});
  }
  return widths;
}

/// The first thing in the network that `ranks` ranks cannot share; "" if they can share all.
std::string Problem(const ModelConfig& config, int32_t ranks, bool whole_attention) {
  std::vector<LayerSpec> layers = config.layers;
  const bool has_modules = config.num_nextn_predict_layers > 0 || config.dspark;
  if (has_modules) layers.push_back(config.mtp_layer);
  for (const LayerSpec& layer : layers) {
    for (const Divided& d : DividedEvenly(layer)) {
      if (whole_attention) break;
      if (d.count % ranks != 0) return fmt::format("{} {}", d.count, d.what);
    }
    for (const Divided& d : DividedInBlocks(layer)) {
      if (d.count < ranks) return fmt::format("{} {}", d.count, d.what);
    }
  }
  return "";
}

}  // namespace

LayerSpec OfOneRank(LayerSpec layer, int32_t ranks) {
  if (auto* mla = std::get_if<MlaSpec>(&layer.attention)) {
    mla->heads /= ranks;
  } else if (auto* gqa = std::get_if<GqaSpec>(&layer.attention)) {
    gqa->heads /= ranks;
    gqa->kv_heads /= ranks;
  } else if (auto* kda = std::get_if<KdaSpec>(&layer.attention)) {
    kda->heads /= ranks;
  } else {
    auto& compressed = std::get<CompressedSpec>(layer.attention);
    compressed.heads /= ranks;
    compressed.output_groups /= ranks;
  }
  return layer;
}

ModelConfig OfOneRank(ModelConfig config, int32_t ranks) {
  for (LayerSpec& layer : config.layers) layer = OfOneRank(layer, ranks);
  config.mtp_layer = OfOneRank(config.mtp_layer, ranks);
  return config;
}

void CheckRanks(const ModelConfig& config, int32_t ranks, std::string_view what,
                bool whole_attention) {
  const std::string problem =
      ranks < 1 || ranks > kMostRanks ? "the model" : Problem(config, ranks, whole_attention);
  if (problem.empty()) return;
  std::vector<int32_t> fitting;
  for (int32_t n = 1; n <= kMostRanks; ++n) {
    if (Problem(config, n, whole_attention).empty()) fitting.push_back(n);
  }
  throw InvalidArgument("{} is {}: that many ranks cannot share {}; use {}", what, ranks, problem,
                        fmt::join(fitting, ", "));
}

}  // namespace outrider
