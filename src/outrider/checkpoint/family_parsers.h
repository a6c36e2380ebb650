// The families' parsers: each turns a config's keys about layers into a LayerSpec per layer.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/checkpoint/config_reader.h"
#include "outrider/checkpoint/model_config.h"

namespace outrider {

/// The largest size of any dimension.
inline constexpr int64_t kMostOfADimension = int64_t{1} << 24;

/// Reads a quantization_config.
void ParseQuantizationConfig(const nlohmann::json& object, std::vector<std::string>& problems,
                             Quantization& quantization);

/// A config on its way to a ModelConfig.
struct FamilyConfig {
  ModelFamily family;
  std::string_view model_type;
  ConfigReader& text;  // the language model's keys
  std::vector<std::string>& problems;
};

/// Fills layers [num_layers], mtp_layer and mtp_zero_first_embedding of `config`, whose sizes and
/// number of positions are read already, and refuses keys by which another network would be meant.
using LayerParser = void(const FamilyConfig& from, int64_t num_layers, ModelConfig& config);

/// DeepSeek-V2 and V3, Kimi-K2, GLM-4.7-Flash.
LayerParser ParseDeepSeekLayers;

/// The one layer of an EAGLE-3 drafter, and ModelConfig::eagle3: with DeepSeek's attention, or with
/// Llama's.
LayerParser ParseEagle3Layer;
LayerParser ParseLlamaEagle3Layer;

/// One layer of DeepSeek's attention and a dense MLP, as `layers`.
void ParseDeepSeekDraftLayer(const FamilyConfig& from, ModelConfig& config);

/// DeepSeek-V4.
LayerParser ParseDeepSeekV4Layers;

/// Step-3.5-Flash.
LayerParser ParseStep3p5Layers;

/// Kimi-Linear.
LayerParser ParseKimiLinearLayers;

/// Ling-3.0.
LayerParser ParseBailingHybridLayers;

}  // namespace outrider
