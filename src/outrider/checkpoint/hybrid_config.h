// What the parsers of networks that mix linear and latent attention share: Kimi-Linear, Ling-3.0.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "outrider/checkpoint/family_parsers.h"

namespace outrider {

/// The first of these spellings of a key that the config has; else the first.
std::string_view SpellingOf(ConfigReader& text, std::initializer_list<std::string_view> keys);

/// Sizes, scale and norms of latent attention; no rotation.
MlaSpec ParseHybridLatentAttention(ConfigReader& text);

/// Reads the linear attention of `text`, whose heads and their width have these keys.
KdaSpec ParseKda(ConfigReader& text, std::string_view heads, std::string_view head_dim);

/// What is left to read of experts when the keys that differ between families are read: sizes,
/// scale, and groups under these keys. experts and top_k of the router are read already.
void ParseHybridExperts(ConfigReader& text, std::string_view groups, MoeSpec& moe);

/// Refuses a network in which no layer has latent attention, or none linear attention.
void CheckHybridLayers(ConfigReader& text, std::string_view key, const ModelConfig& config);

}  // namespace outrider
