#include "outrider/options/speculative_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>

#include "outrider/base/bounded_json.h"
#include "outrider/base/error.h"
#include "outrider/options/option_value.h"

namespace outrider {

namespace {

using json = nlohmann::json;

/// JSON text to a value, refusing objects that hold a key twice.
json ParseUnique(std::string_view where, std::string_view text) {
  constexpr JsonLimits kLimits = {.max_depth = 8, .max_values = 4096, .unique_names_depth = 8};
  try {
    return ParseBoundedJson(text, kLimits);
  } catch (const JsonFault& fault) {
    switch (fault.kind()) {
      case JsonFault::Kind::kSyntax:
        throw InvalidArgument(
            R"({}: '{}' is not JSON (byte {}); write for example {{"method": "mtp", )"
            R"("num_speculative_tokens": 3}})",
            where, text, fault.byte());
      case JsonFault::Kind::kRepeatedName:
        throw InvalidArgument("{}: the key '{}' appears twice", where, fault.name());
      default:
        throw InvalidArgument("{}: {}", where, fault.what());
    }
  }
}

}  // namespace

void SetSpeculationMethod(std::string_view where, std::string_view text,
                          SpeculationOptions& options) {
  static const std::array<std::string, 3> kNames = {"mtp", "eagle3", "ngram"};
  static constexpr std::array kMethods = {DraftMethod::kMtp, DraftMethod::kEagle3,
                                          DraftMethod::kNgram};
  options.method = kMethods.at(ParseChoice(where, text, kNames));
}

void SetNumSpeculativeTokens(std::string_view where, std::string_view text,
                             SpeculationOptions& options) {
  options.num_speculative_tokens =
      static_cast<int32_t>(ParseInteger(where, text, 0, kMaxSpeculativeTokens));
}

namespace {

int32_t WholeNumber(std::string_view where, const json& value, int32_t low, int32_t high) {
  if (!value.is_number_integer()) {
    throw InvalidArgument("{}: must be a whole number, not {}", where, value.dump());
  }
  return static_cast<int32_t>(ParseInteger(where, value.dump(), low, high));
}

std::string String(std::string_view where, const json& value) {
  if (!value.is_string()) {
    throw InvalidArgument("{}: must be a string, not {}", where, value.dump());
  }
  return value.get<std::string>();
}

bool Boolean(std::string_view where, const json& value) {
  if (!value.is_boolean()) {
    throw InvalidArgument("{}: must be true or false, not {}", where, value.dump());
  }
  return value.get<bool>();
}

double Number(std::string_view where, const json& value) {
  if (!value.is_number()) {
    throw InvalidArgument("{}: must be a number, not {}", where, value.dump());
  }
  return value.get<double>();
}

/// [[low, high, tokens], ...]
std::vector<DraftRange> DraftRanges(std::string_view where, const json& value) {
  std::vector<DraftRange> ranges;
  const auto refuse = [&](const json& what) {
    throw InvalidArgument("{}: must be a list of [low, high, tokens], not {}", where, what.dump());
  };
  if (!value.is_array()) refuse(value);
  for (const json& range : value) {
    if (!range.is_array() || range.size() != 3) refuse(range);
    ranges.push_back({WholeNumber(where, range[0], 1, INT32_MAX),
                      WholeNumber(where, range[1], 1, INT32_MAX),
                      WholeNumber(where, range[2], 0, kMaxSpeculativeTokens)});
  }
  return ranges;
}

std::vector<int32_t> LayerIds(std::string_view where, const json& value) {
  if (!value.is_array() || value.empty()) {
    throw InvalidArgument("{}: must be a list of layers, not {}", where, value.dump());
  }
  std::vector<int32_t> ids;
  for (const json& id : value) ids.push_back(WholeNumber(where, id, 1, 4096));
  return ids;
}

struct Key {
  std::string name;
  void (*set)(std::string_view where, const json& value, SpeculationOptions& options);
};

constexpr int32_t kMostCompared = 64;

const std::vector<Key>& Keys() {
  using W = std::string_view;
  using O = SpeculationOptions;
  static const std::vector<Key> keys = {
      {"method",
       [](W where, const json& v, O& o) { SetSpeculationMethod(where, String(where, v), o); }},
      {"model", [](W where, const json& v, O& o) { o.model = String(where, v); }},
      {"eagle_aux_hidden_state_layer_ids",
       [](W where, const json& v, O& o) {
         o.eagle_aux_hidden_state_layer_ids = LayerIds(where, v);
       }},
      {"num_speculative_tokens",
       [](W where, const json& v, O& o) {
         o.num_speculative_tokens = WholeNumber(where, v, 0, kMaxSpeculativeTokens);
       }},
      {"num_speculative_tokens_per_batch_size",
       [](W where, const json& v, O& o) {
         o.num_speculative_tokens_per_batch_size = DraftRanges(where, v);
       }},
      {"enable_adaptive_verification",
       [](W where, const json& v, O& o) { o.enable_adaptive_verification = Boolean(where, v); }},
      {"adaptive", [](W where, const json& v, O& o) { o.adaptive = Boolean(where, v); }},
      {"prompt_lookup_min",
       [](W where, const json& v, O& o) {
         o.prompt_lookup_min = WholeNumber(where, v, 1, kMostCompared);
       }},
      {"prompt_lookup_max",
       [](W where, const json& v, O& o) {
         o.prompt_lookup_max = WholeNumber(where, v, 1, kMostCompared);
       }},
      {"disable_padded_drafter_batch",
       [](W where, const json& v, O& o) {
         o.draft_form = Boolean(where, v) ? DraftForm::kCompacted : DraftForm::kPadded;
       }},
      {"draft_vocab_size", [](W where, const json& v,
                              O& o) { o.draft_vocab_size = WholeNumber(where, v, 1, INT32_MAX); }},
      {"rejection_sample_method",
       [](W where, const json& v, O& o) {
         static const std::array<std::string, 3> kNames = {"match", "standard", "synthetic"};
         static constexpr std::array kMethods = {
             RejectionMethod::kMatch, RejectionMethod::kStandard, RejectionMethod::kSynthetic};
         o.rejection_sample_method = kMethods.at(ParseChoice(where, String(where, v), kNames));
       }},
      {"draft_sample_method",
       [](W where, const json& v, O& o) {
         static const std::array<std::string, 2> kNames = {"greedy", "probabilistic"};
         o.probabilistic_drafts = ParseChoice(where, String(where, v), kNames) == 1;
       }},
      {"synthetic_acceptance_rates",
       [](W where, const json& v, O& o) {
         if (!v.is_array() || v.empty()) {
           throw InvalidArgument("{}: must be a list of numbers, not {}", where, v.dump());
         }
         o.synthetic_acceptance_rates.clear();
         for (const json& rate : v) o.synthetic_acceptance_rates.push_back(Number(where, rate));
       }},
      {"synthetic_acceptance_length",
       [](W where, const json& v, O& o) { o.synthetic_acceptance_length = Number(where, v); }},
  };
  return keys;
}

}  // namespace

void ApplySpeculativeConfig(std::string_view where, std::string_view text,
                            SpeculationOptions& options) {
  const json config = ParseUnique(where, text);
  if (!config.is_object()) {
    throw InvalidArgument("{}: must be a JSON object, not {}", where, config.type_name());
  }
  for (const auto& [name, value] : config.items()) {
    const auto key =
        std::find_if(Keys().begin(), Keys().end(), [&](const Key& k) { return k.name == name; });
    if (key == Keys().end()) {
      std::vector<std::string> names;
      for (const Key& k : Keys()) names.push_back(k.name);
      throw InvalidArgument("{}: unknown key '{}'; known are {}{}", where, name,
                            fmt::join(names, ", "), Suggestion(name, names));
    }
    key->set(fmt::format("{}: {}", where, name), value, options);
  }
}

}  // namespace outrider
