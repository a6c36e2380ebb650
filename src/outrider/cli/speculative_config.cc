#include "outrider/cli/speculative_config.h"

#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "outrider/base/error.h"
#include "outrider/cli/option_value.h"

namespace outrider::cli {

namespace {

using Json = nlohmann::json;

/// JSON text to a value, refusing objects that hold a key twice.
Json ParseUnique(std::string_view where, std::string_view text) {
  std::vector<std::set<std::string>> open_objects;
  const Json::parser_callback_t refuse_repeated = [&](int /*depth*/, Json::parse_event_t event,
                                                      Json& value) {
    if (event == Json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == Json::parse_event_t::object_end) open_objects.pop_back();
    if (event == Json::parse_event_t::key &&
        !open_objects.back().insert(value.get<std::string>()).second) {
      throw InvalidArgument("{}: the key '{}' appears twice", where, value.get<std::string>());
    }
    return true;
  };
  try {
    return Json::parse(text, refuse_repeated);
  } catch (const Json::parse_error& error) {
    throw InvalidArgument(R"({}: '{}' is not JSON (byte {}); write for example {{"method": "mtp", )"
                          R"("num_speculative_tokens": 3}})",
                          where, text, error.byte);
  }
}

}  // namespace

void SetSpeculationMethod(std::string_view where, std::string_view text,
                          SpeculationOptions& options) {
  static const std::array<std::string, 1> kMethods = {"mtp"};
  options.method = kMethods.at(ParseChoice(where, text, kMethods));
}

void SetNumSpeculativeTokens(std::string_view where, std::string_view text,
                             SpeculationOptions& options) {
  options.num_speculative_tokens =
      static_cast<int32_t>(ParseInteger(where, text, 0, kMaxSpeculativeTokens));
}

void ApplySpeculativeConfig(std::string_view where, std::string_view json,
                            SpeculationOptions& options) {
  static const std::array<std::string, 2> kKeys = {"method", "num_speculative_tokens"};
  const Json config = ParseUnique(where, json);
  if (!config.is_object()) {
    throw InvalidArgument("{}: must be a JSON object, not {}", where, config.type_name());
  }
  for (const auto& [key, value] : config.items()) {
    const std::string key_where = fmt::format("{}: {}", where, key);
    if (key == "method") {
      if (!value.is_string()) {
        throw InvalidArgument("{}: must be a string, not {}", key_where, value.dump());
      }
      SetSpeculationMethod(key_where, value.get<std::string>(), options);
    } else if (key == "num_speculative_tokens") {
      if (!value.is_number_integer()) {
        throw InvalidArgument("{}: must be a whole number, not {}", key_where, value.dump());
      }
      SetNumSpeculativeTokens(key_where, value.dump(), options);
    } else {
      throw InvalidArgument("{}: unknown key '{}'; known are method and num_speculative_tokens{}",
                            where, key, Suggestion(key, kKeys));
    }
  }
}

}  // namespace outrider::cli
