#include "outrider/server/openai/parse_tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "outrider/server/openai/raw_json.h"

namespace outrider::openai {
namespace {

using nlohmann::json;

constexpr size_t kMaxTools = 1024;

// Names as OpenAI has them, and dots, which other servers' tools use.
bool IsFunctionName(const std::string& name) {
  return !name.empty() && name.size() <= 128 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_' || c == '.';
  });
}

// Whether a schema allows strings and nothing else.
bool IsStringSchema(const json& schema) {
  if (!schema.is_object()) return false;
  const auto type = schema.find("type");
  if (type != schema.end()) return *type == "string";
  const auto choices = schema.find("enum");
  return choices != schema.end() && choices->is_array() && !choices->empty() &&
         std::all_of(choices->begin(), choices->end(),
                     [](const json& choice) { return choice.is_string(); });
}

std::string ParseName(FieldReader& function) {
  std::optional<std::string> name = function.String("name");
  if (!name) function.Refuse("name", "is missing; it must be a string");
  if (!IsFunctionName(*name)) {
    function.Refuse("name", fmt::format("{} must have 1 to 128 letters, digits, \"_\", \"-\" or "
                                        "\".\" and nothing else",
                                        Shorten(json(*name))));
  }
  return std::move(*name);
}

// Appends one function to `tools`.
void ParseTool(const json& value, ToolUse* tools) {
  const size_t index = tools->functions.size();
  FieldReader tool(value, fmt::format("tools[{}]", index));
  const std::optional<std::string> type = tool.String("type");
  if (!type) tool.Refuse("type", "is missing; use \"function\"");
  if (*type != "function") {
    tool.Refuse("type",
                fmt::format("{} is not supported; only \"function\" is", Shorten(json(*type))));
  }
  const json* function_value = tool.Find("function");
  if (function_value == nullptr) tool.Refuse("function", "is missing; it must be an object");
  tool.RefuseUnknown();
  FieldReader function(*function_value, tool.PathOf("function"));
  std::string name = ParseName(function);
  if (std::find(tools->functions.begin(), tools->functions.end(), name) != tools->functions.end()) {
    function.Refuse("name", fmt::format("{} is the name of another tool too", Shorten(json(name))));
  }
  function.String("description");
  function.Bool("strict");  // arguments follow the schema wherever a call is enforced
  if (const json* parameters = function.Find("parameters")) {
    if (!parameters->is_object()) {
      function.Refuse("parameters", fmt::format("must be a JSON schema, an object, not {}",
                                                Shorten(*parameters)));
    }
    const auto properties = parameters->find("properties");
    if (properties != parameters->end() && properties->is_object()) {
      for (const auto& [parameter, schema] : properties->items()) {
        if (IsStringSchema(schema)) tools->string_parameters[name].insert(parameter);
      }
    }
  }
  function.RefuseUnknown();
  tools->functions.push_back(std::move(name));
}

void ParseChoice(FieldReader& body, ToolUse* tools) {
  tools->choice = tools->functions.empty() ? ToolChoice::kNone : ToolChoice::kAuto;
  const json* value = body.Find("tool_choice");
  if (value == nullptr || *value == "none") {
    if (value != nullptr) tools->choice = ToolChoice::kNone;
    return;
  }
  const char* const kWanted =
      R"(must be "none", "auto", "required" or {"type": "function", "function": {"name": NAME}})";
  if (*value == "auto") return;  // without tools it asks for nothing
  if (*value == "required") {
    tools->choice = ToolChoice::kRequired;
  } else if (value->is_object()) {
    FieldReader choice(*value, "tool_choice");
    if (choice.String("type") != "function") body.Refuse("tool_choice", kWanted);
    const json* function_value = choice.Find("function");
    if (function_value == nullptr) body.Refuse("tool_choice", kWanted);
    choice.RefuseUnknown();
    FieldReader function(*function_value, "tool_choice.function");
    tools->named = ParseName(function);
    function.RefuseUnknown();
    tools->choice = ToolChoice::kNamed;
    if (std::find(tools->functions.begin(), tools->functions.end(), tools->named) ==
        tools->functions.end()) {
      function.Refuse("name",
                      fmt::format("{} is not among the tools", Shorten(json(tools->named))));
    }
  } else {
    body.Refuse("tool_choice", fmt::format("{}, not {}", kWanted, Shorten(*value)));
  }
  if (tools->functions.empty()) {
    body.Refuse("tool_choice", "asks for a call, but there are no tools");
  }
}

}  // namespace

void ParseTools(FieldReader& body, std::string_view raw, TokenRequest* request) {
  ToolUse& tools = request->tools;
  if (const json* value = body.Find("tools")) {
    if (!value->is_array()) {
      body.Refuse("tools", fmt::format("must be an array, not {}", Shorten(*value)));
    }
    if (value->size() > kMaxTools) {
      body.Refuse("tools",
                  fmt::format("has {} tools; at most {} are allowed", value->size(), kMaxTools));
    }
    for (const json& tool : *value) ParseTool(tool, &tools);
    // As the client wrote it: the order of names in a schema is part of the prompt.
    if (!tools.functions.empty()) request->chat.tools_json = RawJson(raw, {"tools"});
  }
  ParseChoice(body, &tools);
  tools.parallel = body.Bool("parallel_tool_calls").value_or(true);
}

}  // namespace outrider::openai
