#include "outrider/openai/parse_tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "outrider/openai/raw_json.h"

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

// Reads the members of a function and appends it to `tools`.
void ParseFunction(FieldReader& function, ToolUse* tools) {
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
  tools->functions.push_back(std::move(name));
}

void CheckType(FieldReader& tool) {
  const std::optional<std::string> type = tool.String("type");
  if (!type) tool.Refuse("type", "is missing; use \"function\"");
  if (*type != "function") {
    tool.Refuse("type",
                fmt::format("{} is not supported; only \"function\" is", Shorten(json(*type))));
  }
}

// Chat completions: {"type", "function": {"name", ...}}.
void ParseNestedTool(FieldReader& body, const json& value, ToolUse* tools) {
  FieldReader tool(value, fmt::format("tools[{}]", tools->functions.size()), body);
  CheckType(tool);
  const json* function_value = tool.Find("function");
  if (function_value == nullptr) tool.Refuse("function", "is missing; it must be an object");
  tool.RefuseUnknown();
  FieldReader function(*function_value, tool.PathOf("function"), tool);
  ParseFunction(function, tools);
  function.RefuseUnknown();
}

// Responses: {"type", "name", ...}. Returns the nested form, which chat templates take; `raw` is
// the tool's text.
std::string ParseFlatTool(FieldReader& body, const json& value, std::string_view raw,
                          ToolUse* tools) {
  FieldReader tool(value, fmt::format("tools[{}]", tools->functions.size()), body);
  CheckType(tool);
  ParseFunction(tool, tools);
  tool.RefuseUnknown();
  std::string members;
  for (const char* name : {"name", "description", "parameters"}) {
    if (!value.contains(name) || value[name].is_null()) continue;
    members += fmt::format("{}\"{}\":{}", members.empty() ? "" : ",", name, RawJson(raw, {name}));
  }
  return fmt::format(R"({{"type":"function","function":{{{}}}}})", members);
}

const json* FindTools(FieldReader& body) {
  const json* value = body.Find("tools");
  if (value == nullptr) return nullptr;
  if (!value->is_array()) {
    body.Refuse("tools", fmt::format("must be an array, not {}", Shorten(*value)));
  }
  if (value->size() > kMaxTools) {
    body.Refuse("tools",
                fmt::format("has {} tools; at most {} are allowed", value->size(), kMaxTools));
  }
  return value;
}

// `flat`: a named function stands in tool_choice itself, else in its member "function".
void ParseChoice(FieldReader& body, bool flat, ToolUse* tools) {
  tools->choice = tools->functions.empty() ? ToolChoice::kNone : ToolChoice::kAuto;
  tools->parallel = body.Bool("parallel_tool_calls").value_or(true);
  const json* value = body.Find("tool_choice");
  if (value == nullptr || *value == "none") {
    if (value != nullptr) tools->choice = ToolChoice::kNone;
    return;
  }
  const std::string wanted =
      fmt::format(R"(must be "none", "auto", "required" or {})",
                  flat ? R"({"type": "function", "name": NAME})"
                       : R"({"type": "function", "function": {"name": NAME}})");
  if (*value == "auto") return;  // without tools it asks for nothing
  if (*value == "required") {
    tools->choice = ToolChoice::kRequired;
  } else if (value->is_object()) {
    FieldReader choice(*value, "tool_choice", body);
    if (choice.String("type") != "function") body.Refuse("tool_choice", wanted);
    const json* function_value = flat ? value : choice.Find("function");
    if (function_value == nullptr) body.Refuse("tool_choice", wanted);
    FieldReader function(*function_value, flat ? "tool_choice" : "tool_choice.function", choice);
    tools->named = ParseName(function);
    if (flat) {
      choice.Find("name");
    } else {
      function.RefuseUnknown();
    }
    choice.RefuseUnknown();
    tools->choice = ToolChoice::kNamed;
    if (std::find(tools->functions.begin(), tools->functions.end(), tools->named) ==
        tools->functions.end()) {
      function.Refuse("name",
                      fmt::format("{} is not among the tools", Shorten(json(tools->named))));
    }
  } else {
    body.Refuse("tool_choice", fmt::format("{}, not {}", wanted, Shorten(*value)));
  }
  if (tools->functions.empty()) {
    body.Refuse("tool_choice", "asks for a call, but there are no tools");
  }
}

}  // namespace

void ParseTools(FieldReader& body, std::string_view raw, TokenRequest* request) {
  if (const json* value = FindTools(body)) {
    for (const json& tool : *value) ParseNestedTool(body, tool, &request->tools);
    // As the client wrote it: the order of names in a schema is part of the prompt.
    if (!value->empty()) request->chat.tools_json = RawJson(raw, {"tools"});
  }
  ParseChoice(body, /*flat=*/false, &request->tools);
}

void ParseFlatTools(FieldReader& body, std::string_view raw, TokenRequest* request) {
  if (const json* value = FindTools(body)) {
    const std::vector<std::string_view> texts = RawElements(RawJson(raw, {"tools"}));
    for (size_t i = 0; i < value->size(); ++i) {
      std::string& all = request->chat.tools_json;
      all += all.empty() ? "[" : ",";
      all += ParseFlatTool(body, (*value)[i], texts[i], &request->tools);
    }
    if (!value->empty()) request->chat.tools_json += "]";
  }
  ParseChoice(body, /*flat=*/true, &request->tools);
}

}  // namespace outrider::openai
