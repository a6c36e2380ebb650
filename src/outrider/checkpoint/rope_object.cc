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
