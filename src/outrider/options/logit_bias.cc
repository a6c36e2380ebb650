#include "outrider/options/logit_bias.h"

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "outrider/base/error.h"
#include "outrider/options/option_value.h"

namespace outrider {

std::vector<TokenBias> ParseLogitBias(std::string_view where, std::string_view text) {
  const auto object = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    throw InvalidArgument("{}: '{}' is not a JSON object such as {{\"17\": -100}}", where, text);
  }
  std::vector<TokenBias> result;
  for (const auto& [key, value] : object.items()) {
    const int64_t token = ParseInteger(fmt::format("{}: token id", where), key, 0,
                                       std::numeric_limits<int32_t>::max());
    if (!value.is_number()) {
      throw InvalidArgument("{}: the value of token {} must be a number", where, token);
    }
    result.push_back({static_cast<int32_t>(token), value.get<float>()});
  }
  return result;
}

}  // namespace outrider
