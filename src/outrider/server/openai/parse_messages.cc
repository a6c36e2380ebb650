#include "outrider/server/openai/parse_messages.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "outrider/server/openai/api_error.h"
#include "outrider/server/openai/field_reader.h"

namespace outrider::openai {
namespace {

using nlohmann::json;

std::string ParseTextParts(const json& parts, const std::string& where) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    FieldReader part(parts[i], fmt::format("{}[{}]", where, i));
    const std::optional<std::string> type = part.String("type");
    if (!type) part.Refuse("type", "is missing; only \"text\" parts are supported");
    if (*type != "text") {
      part.Refuse("type", fmt::format("{} is not supported; only \"text\" parts are",
                                      Shorten(json(*type))));
    }
    const std::optional<std::string> piece = part.String("text");
    if (!piece) part.Refuse("text", "is missing; a text part needs a string");
    part.RefuseUnknown();
    if (i > 0) text += '\n';
    text += *piece;
  }
  return text;
}

json ParseMessage(const json& value, const std::string& where) {
  FieldReader message(value, where);
  std::optional<std::string> role = message.String("role");
  if (!role) message.Refuse("role", "is missing; use \"system\", \"user\" or \"assistant\"");
  if (*role == "tool" || *role == "function") {
    message.Refuse("role", fmt::format("\"{}\" is not supported yet by this server", *role));
  }
  if (*role == "developer") *role = "system";
  if (*role != "system" && *role != "user" && *role != "assistant") {
    message.Refuse("role", fmt::format("{} is unknown; use \"system\", \"user\" or \"assistant\"",
                                       Shorten(json(*role))));
  }
  for (const char* name : {"tool_calls", "tool_call_id", "function_call", "audio", "reasoning",
                           "reasoning_content", "refusal", "annotations"}) {
    message.Unsupported(name, {json::array()});
  }
  json result = {{"role", *role}};
  const json* content = message.Find("content");
  if (content == nullptr) message.Refuse("content", "is missing; it must be text");
  if (content->is_string()) {
    result["content"] = *content;
  } else if (content->is_array()) {
    result["content"] = ParseTextParts(*content, message.PathOf("content"));
  } else {
    message.Refuse("content", fmt::format("must be a string or an array of text parts, not {}",
                                          Shorten(*content)));
  }
  if (const auto name = message.String("name")) result["name"] = *name;
  message.RefuseUnknown();
  return result;
}

}  // namespace

std::string ParseMessages(const json* messages) {
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    throw RequestError(ErrorCode::kInvalidArgument, "messages",
                       "messages: must be an array of at least one message");
  }
  json result = json::array();
  for (const json& message : *messages) {
    result.push_back(ParseMessage(message, fmt::format("messages[{}]", result.size())));
  }
  return result.dump();
}

}  // namespace outrider::openai
