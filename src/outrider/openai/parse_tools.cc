#include "outrider/openai/parse_tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "outrider/openai/raw_json.h"
#include "outrider/output/call_header.h"

namespace outrider::openai {
namespace {

using nlohmann::json;

constexpr size_t kMaxTools = 1024;

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
  if (function.Bool("strict").value_or(false)) tools->strict.insert(name);
  if (const json* parameters = function.Find("parameters")) {
    if (!parameters->is_object()) {
      function.Refuse("parameters", fmt::format("must be a JSON schema, an object, not {}",
                                                Shorten(*parameters)));
    }
    tools->types.emplace(name, ParameterTypesOf(*parameters));
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

// The name of one of the tools, which `choice`, tool_choice or a part of it, tells. `flat`: it
// stands there itself, else in the member "function".
std::string ParseChosenName(FieldReader& choice, const std::string& path, bool flat,
                            const ToolUse& tools) {
  const auto check = [&](FieldReader& function) {
    std::string name = ParseName(function);
    if (std::find(tools.functions.begin(), tools.functions.end(), name) == tools.functions.end()) {
      function.Refuse("name", fmt::format("{} is not among the tools", Shorten(json(name))));
    }
    return name;
  };
  if (flat) return check(choice);
  const json* function_value = choice.Find("function");
  if (function_value == nullptr) choice.Refuse("function", "is missing; it must be an object");
  FieldReader function(*function_value, path + ".function", choice);
  std::string name = check(function);
  function.RefuseUnknown();
  return name;
}

// {"mode", "tools"}: the tools of the request that may be called this time.
void ParseAllowedTools(FieldReader& allowed, const std::string& path, bool flat, ToolUse* tools) {
  const std::string mode = allowed.String("mode").value_or("");
  if (mode != "auto" && mode != "required") {
    allowed.Refuse("mode", R"(must be "auto" or "required")");
  }
  const json* list = allowed.Find("tools");
  if (list == nullptr || !list->is_array() || list->empty()) {
    allowed.Refuse("tools", "must be an array of at least one tool");
  }
  std::set<std::string, std::less<>>& names = tools->allowed.emplace();
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string place = fmt::format("{}.tools[{}]", path, i);
    FieldReader tool((*list)[i], place, allowed);
    CheckType(tool);
    names.insert(ParseChosenName(tool, place, flat, *tools));
    tool.RefuseUnknown();
  }
  if (mode == "required") tools->choice = ToolChoice::kRequired;
}

// False when it is none of the objects that tool_choice may be. `flat`: as the Responses API has
// them.
bool ParseChoiceObject(FieldReader& choice, bool flat, ToolUse* tools) {
  const std::string type = choice.String("type").value_or("");
  const json* const inner = flat ? nullptr : choice.Find(type);
  if (type == "function" && (flat || inner != nullptr)) {
    tools->named = ParseChosenName(choice, "tool_choice", flat, *tools);
    tools->choice = ToolChoice::kNamed;
  } else if (type == "allowed_tools" && flat) {
    ParseAllowedTools(choice, "tool_choice", flat, tools);
  } else if (type == "allowed_tools" && inner != nullptr) {
    FieldReader allowed(*inner, "tool_choice.allowed_tools", choice);
    ParseAllowedTools(allowed, "tool_choice.allowed_tools", flat, tools);
    allowed.RefuseUnknown();
  } else {
    return false;
  }
  choice.RefuseUnknown();
  return true;
}

void ParseChoice(FieldReader& body, bool flat, ToolUse* tools) {
  tools->choice = tools->functions.empty() ? ToolChoice::kNone : ToolChoice::kAuto;
  tools->parallel = body.Bool("parallel_tool_calls").value_or(true);
  const json* value = body.Find("tool_choice");
  if (value == nullptr || *value == "none") {
    if (value != nullptr) tools->choice = ToolChoice::kNone;
    return;
  }
  if (*value == "auto") return;  // without tools it asks for nothing
  const auto refuse = [&] {
    body.Refuse("tool_choice",
                fmt::format(R"(must be "none", "auto", "required", {} or an object of the type )"
                            R"("allowed_tools", not {})",
                            flat ? R"({"type": "function", "name": NAME})"
                                 : R"({"type": "function", "function": {"name": NAME}})",
                            Shorten(*value)));
  };
  if (*value != "required" && !value->is_object()) refuse();
  if (tools->functions.empty()) {
    body.Refuse("tool_choice", "asks for a call, but there are no tools");
  }
  if (*value == "required") {
    tools->choice = ToolChoice::kRequired;
    return;
  }
  FieldReader choice(*value, "tool_choice", body);
  if (!ParseChoiceObject(choice, flat, tools)) refuse();
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
