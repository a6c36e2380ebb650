#include "outrider/openai/request_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "outrider/base/bounded_json.h"
#include "outrider/openai/api_error.h"

namespace outrider::openai {
namespace {

constexpr JsonLimits kBodyLimits = {
    .max_depth = kMaxRequestDepth, .max_values = kMaxRequestValues, .unique_names_depth = 1};

RequestError BadBody(std::string_view body, const JsonFault& fault) {
  if (body.empty()) {
    return {ErrorCode::kInvalidArgument, "", "the request body is empty; it must be a JSON object",
            "invalid_json"};
  }
  const std::string message = fmt::format("the request body {}", fault.what());
  switch (fault.kind()) {
    case JsonFault::Kind::kSyntax:
    case JsonFault::Kind::kNumber:
      return {ErrorCode::kInvalidArgument, "", message, "invalid_json"};
    case JsonFault::Kind::kDepth:
    case JsonFault::Kind::kValues:
      return {ErrorCode::kInvalidArgument, "", message};
    case JsonFault::Kind::kRepeatedName:
      break;
  }
  const std::string name = fault.name().substr(0, 64);
  return {ErrorCode::kInvalidArgument, name, fmt::format("{}: is given twice", name)};
}

}  // namespace

void ClearRequestJson::operator()(nlohmann::json* value) const {
  ClearJson(*value);
  delete value;
}

RequestJson ParseRequestJson(std::string_view body) {
  RequestJson parsed(new nlohmann::json);
  try {
    *parsed = ParseBoundedJson(body, kBodyLimits);
    return parsed;
  } catch (const JsonFault& fault) {
    throw BadBody(body, fault);
  }
}

nlohmann::ordered_json ParseInOrder(std::string_view part) {
  return ParseBoundedJson<nlohmann::ordered_json>(
      part, {.max_depth = kMaxRequestDepth, .max_values = kMaxRequestValues});
}

}  // namespace outrider::openai
