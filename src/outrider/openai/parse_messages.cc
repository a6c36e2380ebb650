#include "outrider/openai/parse_messages.h"

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "outrider/openai/api_error.h"
#include "outrider/openai/field_reader.h"
#include "outrider/openai/raw_json.h"
#include "outrider/openai/request_json.h"

namespace outrider::openai {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

std::string ParseTextParts(FieldReader& message, const json& parts) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    FieldReader part(parts[i], fmt::format("{}[{}]", message.PathOf("content"), i), message);
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

// A call that the model made earlier. Its arguments stay text: the chat template can take them both
// as text and as an object.
json ParseToolCall(FieldReader& message, const json& value, size_t index) {
  FieldReader call(value, fmt::format("{}[{}]", message.PathOf("tool_calls"), index), message);
  const std::string type = call.String("type").value_or("function");
  if (type != "function") {
    call.Refuse("type", fmt::format("{} is unknown; use \"function\"", Shorten(json(type))));
  }
  const std::optional<std::string> id = call.String("id");
  if (!id) call.Refuse("id", "is missing; it must be a string");
  call.Integer("index", 0, std::numeric_limits<int64_t>::max());  // of a stream's delta
  const json* value_of_function = call.Find("function");
  if (value_of_function == nullptr) {
    call.Refuse("function", "is missing; it must be an object with \"name\" and \"arguments\"");
  }
  FieldReader function(*value_of_function, call.PathOf("function"), call);
  const std::optional<std::string> name = function.String("name");
  if (!name) function.Refuse("name", "is missing; it must be a string");
  const std::string arguments = function.String("arguments").value_or("");
  function.RefuseUnknown();
  call.RefuseUnknown();
  return {{"id", *id},
          {"type", "function"},
          {"function", {{"name", *name}, {"arguments", arguments.empty() ? "{}" : arguments}}}};
}

json ParseToolCalls(FieldReader& message) {
  json calls = json::array();
  const json* value = message.Find("tool_calls");
  if (value == nullptr) return calls;
  if (!value->is_array()) {
    message.Refuse("tool_calls", fmt::format("must be an array, not {}", Shorten(*value)));
  }
  for (const json& call : *value) {
    calls.push_back(ParseToolCall(message, call, calls.size()));
  }
  return calls;
}

// What only the assistant says. True when there is something.
bool ParseAssistant(FieldReader& message, json* result) {
  json calls = ParseToolCalls(message);
  std::optional<std::string> reasoning = message.String("reasoning_content");
  // The other name of the same; answers carry both.
  if (auto other = message.String("reasoning"); other && !reasoning) reasoning = std::move(other);
  const bool any = !calls.empty() || reasoning.has_value();
  if (!calls.empty()) (*result)["tool_calls"] = std::move(calls);
  if (reasoning) (*result)["reasoning_content"] = std::move(*reasoning);
  return any;
}

json ParseMessage(FieldReader& body, const json& value, size_t index) {
  FieldReader message(value, fmt::format("messages[{}]", index), body);
  std::optional<std::string> role = message.String("role");
  const char* const kRoles = R"("system", "user", "assistant" or "tool")";
  if (!role) message.Refuse("role", fmt::format("is missing; use {}", kRoles));
  if (*role == "developer") *role = "system";
  if (*role != "system" && *role != "user" && *role != "assistant" && *role != "tool") {
    message.Refuse("role", fmt::format("{} is unknown; use {}", Shorten(json(*role)), kRoles));
  }
  for (const char* name : {"function_call", "audio", "refusal", "annotations"}) {
    message.Unsupported(name, {json::array()});
  }
  json result = {{"role", *role}};
  bool needs_content = true;
  if (*role == "assistant") needs_content = !ParseAssistant(message, &result);
  if (*role == "tool") {
    if (auto id = message.String("tool_call_id")) result["tool_call_id"] = std::move(*id);
  }
  const json* content = message.Find("content");
  if (content == nullptr && needs_content) message.Refuse("content", "is missing; it must be text");
  if (content == nullptr) {
    result["content"] = "";
  } else if (content->is_string()) {
    result["content"] = *content;
  } else if (content->is_array()) {
    result["content"] = ParseTextParts(message, *content);
  } else {
    message.Refuse("content", fmt::format("must be a string or an array of text parts, not {}",
                                          Shorten(*content)));
  }
  if (const auto name = message.String("name")) result["name"] = *name;
  message.RefuseUnknown();
  return result;
}

// `value` with the members of its objects in the order of `spelled`; those that it lacks come last.
// Templates print calls with all their members.
ordered_json InOrderOf(const ordered_json& spelled, const json& value) {
  if (value.is_array()) {
    ordered_json result = ordered_json::array();
    for (const json& element : value) {
      const bool has = spelled.is_array() && result.size() < spelled.size();
      result.push_back(InOrderOf(has ? spelled[result.size()] : ordered_json(), element));
    }
    return result;
  }
  if (!value.is_object()) return value;
  ordered_json result = ordered_json::object();
  if (spelled.is_object()) {
    for (const auto& [name, member] : spelled.items()) {
      if (value.contains(name)) result[name] = InOrderOf(member, value[name]);
    }
  }
  for (const auto& [name, member] : value.items()) {
    if (!result.contains(name)) result[name] = InOrderOf(ordered_json(), member);
  }
  return result;
}

}  // namespace

std::string ParseMessages(FieldReader& body, std::string_view raw) {
  const json* messages = body.Find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    throw RequestError(ErrorCode::kInvalidArgument, "messages",
                       "messages: must be an array of at least one message");
  }
  json result = json::array();
  for (const json& message : *messages) {
    result.push_back(ParseMessage(body, message, result.size()));
  }
  return InOrderOf(ParseInOrder(RawJson(raw, {"messages"})), result).dump();
}

}  // namespace outrider::openai
