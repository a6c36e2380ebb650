#include "outrider/checkpoint/rope_object.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "outrider/base/error.h"

namespace outrider {
namespace {

using nlohmann::json;

constexpr std::string_view kPublished = "rope_scaling";
constexpr std::string_view kOfTransformers = "rope_parameters";

/// What the object says of scaling, in one spelling.
json ScalingOf(json object) {
  object.erase("rope_theta");
  if (const auto type = object.find("type"); type != object.end()) {
    json value = std::move(*type);
    object.erase(type);
    object.emplace("rope_type", std::move(value));
  }
  return object;
}

}  // namespace

RopeObject FindRope(ConfigReader& text) {
  RopeObject found;
  for (const std::string_view key : {kPublished, kOfTransformers}) {
    const json* object = text.Find(key);
    if (object == nullptr) continue;
    if (!object->is_object()) {
      text.Refuse(key, "an object or null is needed");
    } else if (found.object == nullptr) {
      found = {std::string(key), object};
    } else if (ScalingOf(*object) != ScalingOf(*found.object)) {
      text.Refuse(key,
                  fmt::format("it does not say what \"{}\" says; keep one of them", kPublished));
    }
  }
  return found;
}

std::string RopeType(ConfigReader& rope, std::string_view scaling) {
  const std::string_view type_key = rope.Find("rope_type") != nullptr ? "rope_type" : "type";
  const std::string_view fallback = rope.Find("factor") == nullptr ? "default" : "";
  return rope.Choice(type_key, {"default", scaling},
                     fmt::format("\"{}\" and \"default\" are supported", scaling), fallback);
}

std::optional<YarnScaling> ReadYarnRamp(ConfigReader& rope) {
  if (RopeType(rope, "yarn") != "yarn") return std::nullopt;
  YarnScaling yarn;
  yarn.factor = rope.Number("factor", 1, 1e6);
  yarn.original_max_position_embeddings =
      rope.Integer("original_max_position_embeddings", 1, INT32_MAX);
  yarn.beta_fast = rope.Number("beta_fast", 1e-3, 1e6, 32);
  yarn.beta_slow = rope.Number("beta_slow", 1e-3, 1e6, 1);
  yarn.truncate = rope.Boolean("truncate", true);
  return yarn;
}

void CheckYarnRamp(ConfigReader& rope, const YarnScaling& yarn) {
  if (yarn.beta_fast < yarn.beta_slow) {
    rope.Refuse("beta_fast", fmt::format("it may not be below \"beta_slow\", {}", yarn.beta_slow));
  }
}

std::optional<YarnScaling> ParseYarn(ConfigReader& rope, const std::vector<std::string>& problems) {
  const size_t before = problems.size();
  std::optional<YarnScaling> read = ReadYarnRamp(rope);
  if (!read) return std::nullopt;
  YarnScaling& yarn = *read;
  yarn.mscale = rope.Number("mscale", 0, 100, 1);
  yarn.mscale_all_dim = rope.Number("mscale_all_dim", 0, 100, 0);
  if (problems.size() > before) return std::nullopt;

  CheckYarnRamp(rope, yarn);
  // DeepSeek's code and transformers disagree on one of the two alone, unless it is mscale 1. No
  // published config has one alone.
  const bool both = yarn.mscale > 0 && yarn.mscale_all_dim > 0;
  if (!both && (yarn.mscale_all_dim != 0 || yarn.mscale != 1)) {
    rope.Refuse("mscale", "it needs \"mscale_all_dim\" beside it, both above 0");
  } else if (both && rope.Find("mscale") == nullptr) {
    rope.Refuse("mscale_all_dim", "it needs \"mscale\" beside it, both above 0");
  }
  if (rope.Find("attention_factor") != nullptr) {
    rope.Refuse("attention_factor", "use \"mscale\" and \"mscale_all_dim\"");
  }
  return read;
}

Llama3Scaling ReadLlama3(ConfigReader& rope) {
  Llama3Scaling scaling;
  scaling.factor = rope.Number("factor", 1, 1e6);
  scaling.original_max_position_embeddings =
      rope.Integer("original_max_position_embeddings", 1, INT32_MAX);
  scaling.low_frequency_factor = rope.Number("low_freq_factor", 1e-3, 1e6);
  scaling.high_frequency_factor = rope.Number("high_freq_factor", 1e-3, 1e6);
  if (scaling.low_frequency_factor >= scaling.high_frequency_factor) {
    rope.Refuse("low_freq_factor", fmt::format("it has to be below \"high_freq_factor\", {}",
                                               scaling.high_frequency_factor));
  }
  return scaling;
}

void RefuseForeignRopeKeys(ConfigReader& rope, std::string_view method) {
  // Keys of YaRN beside "type": "default" ask for nothing.
  constexpr std::array kYarnKeys = {"factor",    "original_max_position_embeddings",
                                    "beta_fast", "beta_slow",
                                    "mscale",    "mscale_all_dim",
                                    "truncate",  "attention_factor"};
  constexpr std::array kKeysOfAll = {"type", "rope_type", "rope_theta"};
  for (const std::string& key : rope.UnreadKeys()) {
    const bool of_yarn = method == "YaRN" && std::ranges::find(kYarnKeys, key) != kYarnKeys.end();
    if (of_yarn || std::ranges::find(kKeysOfAll, key) != kKeysOfAll.end()) continue;
    if (rope.Find(key) != nullptr) {
      rope.Refuse(key, fmt::format("it is no key of {}; leave it out", method));
    }
  }
}

}  // namespace outrider
