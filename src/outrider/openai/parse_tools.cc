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

// Reads the members of a function, whose JSON schema is in the member `schema`, and appends it to
// `tools`.
void ParseFunction(FieldReader& function, const char* schema, ToolUse* tools) {
  std::string name = ParseName(function);
  if (std::find(tools->functions.begin(), tools->functions.end(), name) != tools->functions.end()) {
    function.Refuse("name", fmt::format("{} is the name of another tool too", Shorten(json(name))));
  }
  function.String("description");
  if (function.Bool("strict").value_or(false)) tools->strict.insert(name);
  if (const json* parameters = function.Find(schema)) {
    if (!parameters->is_object()) {
      function.Refuse(
          schema, fmt::format("must be a JSON schema, an object, not {}", Shorten(*parameters)));
    }
    tools->types.emplace(name, ParameterTypesOf(*parameters));
  }
  tools->functions.push_back(std::move(name));
}

// `flat`: of the Responses API, which has custom tools too.
void CheckType(FieldReader& tool, bool flat = false) {
  const std::optional<std::string> type = tool.String("type");
  if (!type) tool.Refuse("type", "is missing; use \"function\"");
  if (*type == "function" || (flat && *type == "custom")) return;
  tool.Refuse("type", fmt::format("{} is not supported; only \"function\"{} is",
                                  Shorten(json(*type)), flat ? " or \"custom\"" : ""));
}

// Chat completions: {"type", "function": {"name", ...}}.
void ParseNestedTool(FieldReader& body, const json& value, ToolUse* tools) {
  FieldReader tool(value, fmt::format("tools[{}]", tools->functions.size()), body);
  CheckType(tool);
  const json* function_value = tool.Find("function");
  if (function_value == nullptr) tool.Refuse("function", "is missing; it must be an object");
  tool.RefuseUnknown();
  FieldReader function(*function_value, tool.PathOf("function"), tool);
  ParseFunction(function, "parameters", tools);
  function.RefuseUnknown();
}

// A tool with the members of its function itself as chat templates take it; `raw` is its text.
std::string NestedTool(const json& value, std::string_view raw, const char* schema) {
  std::string members;
  for (const char* name : {"name", "description", schema}) {
    if (!value.contains(name) || value[name].is_null()) continue;
    members += fmt::format("{}\"{}\":{}", members.empty() ? "" : ",",
                           name == schema ? "parameters" : name, RawJson(raw, {name}));
  }
  return fmt::format(R"({{"type":"function","function":{{{}}}}})", members);
}

// The description of a custom tool for the model: what it is, and what its input must follow.
std::string CustomDescription(FieldReader& tool) {
  std::string text = tool.String("description").value_or("");
  const json* value = tool.Object("format");
  if (value == nullptr) return text;
  FieldReader format(*value, tool.PathOf("format"), tool);
  const std::string type = format.String("type").value_or("text");
  if (type == "grammar") {
    const std::string syntax = format.String("syntax").value_or("");
    if (syntax != "lark" && syntax != "regex") {
      format.Refuse("syntax", R"(must be "lark" or "regex")");
    }
    const std::optional<std::string> definition = format.String("definition");
    if (!definition) format.Refuse("definition", "is missing; it must be a string");
    text += fmt::format("{}The input follows this grammar ({}):\n{}", text.empty() ? "" : "\n\n",
                        syntax, *definition);
  } else if (type != "text") {
    format.Refuse("type", R"(must be "text" or "grammar")");
  }
  format.RefuseUnknown();
  return text;
}

// Responses: {"type": "custom", "name", "description", "format"}: a tool that takes one text.
// Models know tools with named arguments, so it becomes one with the argument "input".
std::string ParseCustomTool(FieldReader& tool, ToolUse* tools) {
  std::string name = ParseName(tool);
  if (std::find(tools->functions.begin(), tools->functions.end(), name) != tools->functions.end()) {
    tool.Refuse("name", fmt::format("{} is the name of another tool too", Shorten(json(name))));
  }
  const nlohmann::ordered_json parameters = {{"type", "object"},
                                             {"properties", {{"input", {{"type", "string"}}}}},
                                             {"required", {"input"}}};
  const nlohmann::ordered_json nested = {
      {"type", "function"},
      {"function",
       {{"name", name}, {"description", CustomDescription(tool)}, {"parameters", parameters}}}};
  tool.RefuseUnknown();
  tools->types.emplace(name, ParameterTypesOf(json::parse(parameters.dump())));
  tools->custom.insert(name);
  tools->functions.push_back(std::move(name));
  return nested.dump();
}

// Responses: {"type", "name", ...}. Returns the nested form, which chat templates take; `raw` is
// the tool's text.
std::string ParseFlatTool(FieldReader& body, const json& value, std::string_view raw,
                          ToolUse* tools) {
  FieldReader tool(value, fmt::format("tools[{}]", tools->functions.size()), body);
  if (tool.String("type") == "custom") return ParseCustomTool(tool, tools);
  CheckType(tool, /*flat=*/true);
  ParseFunction(tool, "parameters", tools);
  tool.RefuseUnknown();
  return NestedTool(value, raw, "parameters");
}

// Messages: {"name", "input_schema", ...}; returns the nested form, too.
std::string ParseSchemaTool(FieldReader& body, const json& value, std::string_view raw,
                            ToolUse* tools) {
  FieldReader tool(value, fmt::format("tools[{}]", tools->functions.size()), body);
  const std::string type = tool.String("type").value_or("custom");
  if (type != "custom") {
    tool.Refuse("type", fmt::format("{} is not supported: this server runs no tools of its own; "
                                    "describe the tool with \"input_schema\"",
                                    Shorten(json(type))));
  }
  ParseFunction(tool, "input_schema", tools);
  if (tool.Find("input_schema") == nullptr) {
    tool.Refuse("input_schema", "is missing; it must be a JSON schema, an object");
  }
  // What changes nothing here: all tools are in the prompt, and arguments are streamed as they
  // come.
  tool.Object("cache_control");
  tool.Array("input_examples");
  tool.Bool("eager_input_streaming");
  tool.Unsupported("defer_loading", {false});
  tool.Unsupported("allowed_callers", {json::array({"direct"})});
  tool.RefuseUnknown();
  return NestedTool(value, raw, "input_schema");
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
    CheckType(tool, flat);
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
  if ((type == "function" && (flat || inner != nullptr)) || (type == "custom" && flat)) {
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

// Reads each tool by `parse`, which returns it as chat templates take it.
template <typename Parse>
void ParseToolList(FieldReader& body, std::string_view raw, Parse parse, TokenRequest* request) {
  const json* value = FindTools(body);
  if (value == nullptr || value->empty()) return;
  const std::vector<std::string_view> texts = RawElements(RawJson(raw, {"tools"}));
  std::string& all = request->chat.tools_json;
  for (size_t i = 0; i < value->size(); ++i) {
    all += all.empty() ? "[" : ",";
    all += parse(body, (*value)[i], texts[i], &request->tools);
  }
  all += "]";
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
  ParseToolList(body, raw, ParseFlatTool, request);
  ParseChoice(body, /*flat=*/true, &request->tools);
}

void ParseMessageTools(FieldReader& body, std::string_view raw, TokenRequest* request) {
  ParseToolList(body, raw, ParseSchemaTool, request);
  ToolUse& tools = request->tools;
  tools.choice = tools.functions.empty() ? ToolChoice::kNone : ToolChoice::kAuto;
  const json* value = body.Find("tool_choice");
  if (value == nullptr) return;
  FieldReader choice(*value, "tool_choice", body);
  const std::string type = choice.String("type").value_or("");
  tools.parallel = !choice.Bool("disable_parallel_tool_use").value_or(false);
  if (type == "none") {
    tools.choice = ToolChoice::kNone;
  } else if (type == "any" || type == "tool") {
    if (tools.functions.empty()) {
      body.Refuse("tool_choice", "asks for a call, but there are no tools");
    }
    tools.choice = type == "any" ? ToolChoice::kRequired : ToolChoice::kNamed;
    if (type == "tool") tools.named = ParseChosenName(choice, "tool_choice", /*flat=*/true, tools);
  } else if (type != "auto") {
    choice.Refuse("type", R"(must be "auto", "any", "tool" or "none")");
  }
  choice.RefuseUnknown();
}

}  // namespace outrider::openai
