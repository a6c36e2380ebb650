// What a network is for one of several ranks that share it: each has a part of every layer's heads.
#pragma once

#include <cstdint>
#include <string_view>

#include "outrider/checkpoint/model_config.h"

namespace outrider {

/// The layer as each of `ranks` ranks runs it: with its part of the heads, and of the groups that
/// their outputs come in.
LayerSpec OfOneRank(LayerSpec layer, int32_t ranks);
/// The network with all layers as each of `ranks` ranks runs them.
ModelConfig OfOneRank(ModelConfig config, int32_t ranks);

/// Throws Error if `ranks` ranks cannot share the network. The error begins with `what` and lists
/// the numbers of ranks that can. whole_attention: every rank has all heads.
void CheckRanks(const ModelConfig& config, int32_t ranks, std::string_view what,
                bool whole_attention = false);

/// The most ranks that share a model.
inline constexpr int32_t kMostRanks = 8;

}  // namespace outrider
