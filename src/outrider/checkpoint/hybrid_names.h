// Under which names checkpoints of networks that mix linear and latent attention hold their
// tensors: Kimi-Linear and Ling-3.0 are built alike and say it differently.
#pragma once

#include <string_view>

#include "outrider/checkpoint/model_config.h"

namespace outrider {

/// Without ".weight" where the tensor of a layer has that ending.
struct HybridNames {
  std::string_view embedding;      // "model.embed_tokens.weight"
  std::string_view attention;      // precedes the names of a layer's attention: "self_attn."
  std::string_view decay;          // of a projection of one matrix; of two: _a_proj and _b_proj
  std::string_view gate;           // of a projection of output gates, likewise
  std::string_view latent_output;  // of latent attention
  std::string_view experts;        // precedes the names of a layer with experts
  std::string_view router_bias;    // behind `experts`
  bool numbers_experts = false;    // w1, w2, w3 of an expert; else gate_proj, down_proj, up_proj
};

inline bool IsHybrid(ModelFamily family) {
  return family == ModelFamily::kKimiLinear || family == ModelFamily::kBailingHybrid;
}

/// The names of such a family.
const HybridNames& HybridNamesOf(ModelFamily family);

/// Whether a checkpoint of such a network has the tensor, without ModelConfig::tensor_prefix.
bool HasHybridTensor(const ModelConfig& config, std::string_view name);

}  // namespace outrider
