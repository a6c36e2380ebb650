#include "outrider/output/tool_grammar.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/grammar/json_schema.h"

namespace outrider {
namespace {

// The order of a schema's properties is the order in which the model writes them.
using Json = nlohmann::ordered_json;

// Whitespace characters in a row within JSON: calls are written on one line.
constexpr int kMaxWhitespace = 2;

Json Text(std::string_view text) { return {{"type", "const_string"}, {"value", text}}; }
Json Regex(std::string_view pattern) { return {{"type", "regex"}, {"pattern", pattern}}; }
Json Sequence(Json elements) { return {{"type", "sequence"}, {"elements", std::move(elements)}}; }
Json Either(Json elements) { return {{"type", "or"}, {"elements", std::move(elements)}}; }
Json Optional(Json content) { return {{"type", "optional"}, {"content", std::move(content)}}; }
Json Repeated(Json content) { return {{"type", "star"}, {"content", std::move(content)}}; }

Json JsonValue(Json schema) {
  return {{"type", "json_schema"},
          {"json_schema", std::move(schema)},
          {"max_whitespace_cnt", kMaxWhitespace}};
}

class TagWriter {
 public:
  TagWriter(const ToolFormat& format, const MarkTokens& mark_tokens)
      : format_(format), mark_tokens_(mark_tokens) {}

  Json Call(const CallableTool& tool) const {
    Json call = Json::array({Mark(format_.call_begin)});
    switch (format_.header) {
      case HeaderKind::kName:
        call.push_back(Text(tool.name));
        break;
      case HeaderKind::kTypeThenName:
        call.insert(call.end(), {Text("function"), Mark(format_.type_end), Text(tool.name)});
        break;
      case HeaderKind::kId:
        call.insert(call.end(), {Text("functions." + tool.name + ":"), Regex("[0-9]{1,3}")});
        break;
    }
    if (!format_.header_end.empty()) call.push_back(Mark(format_.header_end));
    const Json schema = SchemaOf(tool);
    if (IsOneByOne()) {
      AddKeyValues(tool, schema, &call);
    } else {
      if (IsFenced()) call.push_back(Text("```json\n"));
      call.push_back(JsonValue(schema));
      if (IsFenced()) call.push_back(Text("\n```"));
    }
    call.push_back(Mark(format_.call_end));
    return Sequence(std::move(call));
  }

  Json Calls(std::span<const CallableTool> tools, bool parallel) const {
    Json choices = Json::array();
    for (const CallableTool& tool : tools) choices.push_back(Call(tool));
    const Json call = Either(std::move(choices));
    Json all = Json::array();
    // DeepSeek-V4 parts calls from what was said before, and writes the marks on lines of their
    // own.
    const bool on_lines = format_.arguments == ArgumentsForm::kParameters;
    if (on_lines) all.push_back(Text("\n\n"));
    if (!format_.section_begin.empty()) all.push_back(Mark(format_.section_begin));
    if (on_lines) all.push_back(Text(format_.line_end));
    all.push_back(call);
    // DeepSeek-V3 and GLM-4.5 write each call on lines of its own.
    const std::string_view separator = IsFenced() ? "\n" : format_.line_end;
    if (parallel) {
      all.push_back(
          Repeated(separator.empty() ? call : Sequence(Json::array({Text(separator), call}))));
    }
    if (on_lines) all.push_back(Text(format_.line_end));
    if (!format_.section_end.empty()) all.push_back(Mark(format_.section_end));
    return Sequence(std::move(all));
  }

 private:
  bool IsFenced() const { return format_.arguments == ArgumentsForm::kFencedJson; }
  // Each argument has marks of its own.
  bool IsOneByOne() const {
    return format_.arguments == ArgumentsForm::kKeysAndValues ||
           format_.arguments == ArgumentsForm::kParameters;
  }

  // A mark is a token, or text, or text around a token.
  Json Mark(std::string_view mark) const {
    const auto as_token = [](int32_t token) -> Json {
      return {{"type", "token"}, {"token", token}};
    };
    if (const std::optional<int32_t> token = mark_tokens_(mark)) return as_token(*token);
    const std::optional<int32_t> inner = InnerToken();
    const size_t at = inner ? mark.find(format_.inner_mark) : std::string_view::npos;
    if (at == std::string_view::npos) return Text(mark);
    return Sequence(Json::array({Text(mark.substr(0, at)), as_token(*inner),
                                 Text(mark.substr(at + format_.inner_mark.size()))}));
  }

  std::optional<int32_t> InnerToken() const {
    return format_.inner_mark.empty() ? std::nullopt : mark_tokens_(format_.inner_mark);
  }

  // What the arguments must be, in words that the grammar compiler enforces.
  Json SchemaOf(const CallableTool& tool) const {
    if (tool.parameters.empty()) return {{"type", "object"}, {"additionalProperties", true}};
    Json schema;
    try {
      schema = Json::parse(EnforceableSchema(tool.parameters));
    } catch (const Error& error) {
      throw InvalidArgument("tools: the parameters of \"{}\": {}", tool.name, error.what());
    }
    if (schema.empty()) schema["type"] = "object";
    if (IsOneByOne() ? Resolved(schema, schema)["type"] != "object" : !IsObject(schema, schema)) {
      throw InvalidArgument(
          "tools: the parameters of \"{}\" must be a schema with \"type\": \"object\", to force a "
          "call",
          tool.name);
    }
    return schema;
  }

  // What a schema is, when it is a reference to a definition of `whole`.
  static Json Resolved(const Json& whole, Json schema) {
    while (schema.contains("$ref")) {
      const Json::json_pointer path(schema["$ref"].get<std::string>().substr(1));
      schema = whole.at(path);
    }
    return schema;
  }

  // Whether a schema allows objects and nothing else.
  static bool IsObject(const Json& whole, const Json& schema) {
    const Json resolved = Resolved(whole, schema);
    const auto all = [&](const char* name, auto is_object) {
      return resolved.contains(name) &&
             std::all_of(resolved[name].begin(), resolved[name].end(), is_object);
    };
    return (resolved.contains("type") && resolved["type"] == "object") ||
           all("enum", [](const Json& value) { return value.is_object(); }) ||
           all("anyOf", [&](const Json& choice) { return IsObject(whole, choice); });
  }

  // The schema's properties in their order. Others come where it knows none: only then none comes
  // twice.
  void AddKeyValues(const CallableTool& tool, const Json& whole, Json* call) const {
    const Json schema = Resolved(whole, whole);
    for (const char* name :
         {"minProperties", "maxProperties", "propertyNames", "patternProperties"}) {
      if (schema.contains(name)) {
        throw InvalidArgument("tools: the parameters of \"{}\": \"{}\" is not supported", tool.name,
                              name);
      }
    }
    call->push_back(Text(format_.line_end));
    const auto member = [&](const char* name, const Json& otherwise) {
      return schema.contains(name) ? schema[name] : otherwise;
    };
    const Json properties = member("properties", Json::object());
    const Json required = member("required", Json::array());
    const Json others = member("additionalProperties", false);
    for (const auto& [name, property] : properties.items()) {
      const bool is_required = std::find(required.begin(), required.end(), name) != required.end();
      const bool is_string = tool.string_parameters.contains(name);
      Json argument = Argument(Text(name), is_string, Value(tool, whole, name, property));
      call->push_back(is_required ? std::move(argument) : Optional(std::move(argument)));
    }
    if (properties.empty() && others != false) {
      call->push_back(Repeated(Argument(Regex("[a-zA-Z_][a-zA-Z0-9_]{0,63}"), false,
                                        JsonValue(WithDefinitions(whole, others)))));
    }
  }

  Json Argument(Json key, bool is_string, Json value) const {
    if (format_.arguments == ArgumentsForm::kParameters) {
      return Sequence(Json::array({Mark(kParameterBegin), std::move(key),
                                   Text(is_string ? kParameterOfText : kParameterOfJson),
                                   std::move(value), Mark(kParameterEnd), Text(format_.line_end)}));
    }
    return Sequence(
        Json::array({Mark(kArgumentKeyBegin), std::move(key), Mark(kArgumentKeyEnd),
                     Text(format_.line_end), Mark(kArgumentValueBegin), std::move(value),
                     Mark(kArgumentValueEnd), Text(format_.line_end)}));
  }

  // Strings stand as they are, everything else is JSON. A string that other types are allowed
  // beside is quoted: nobody could tell the text 5 from the number.
  Json Value(const CallableTool& tool, const Json& whole, const std::string& name,
             const Json& property) const {
    if (!tool.string_parameters.contains(name)) return JsonValue(WithDefinitions(whole, property));
    return StringValue(whole, property);
  }

  Json StringValue(const Json& whole, const Json& property) const {
    const Json schema = Resolved(whole, property);
    Json choices = Json::array();
    if (schema.contains("anyOf")) {
      for (const Json& choice : schema["anyOf"]) choices.push_back(StringValue(whole, choice));
    } else if (schema.contains("enum")) {
      for (const Json& choice : schema["enum"]) choices.push_back(Text(choice.get<std::string>()));
    } else if (schema.contains("pattern")) {
      return Regex(schema["pattern"].get<std::string>());
    } else {
      return AnyString(schema);
    }
    return Either(std::move(choices));
  }

  Json AnyString(const Json& property) const {
    const auto length = [&](const char* bound) -> std::string {
      const auto found = property.find(bound);
      return found != property.end() && found->is_number_unsigned() ? found->dump() : "";
    };
    const std::string_view end =
        format_.arguments == ArgumentsForm::kParameters ? kParameterEnd : kArgumentValueEnd;
    // Where the mark that ends the value has no token, no '<' may look like it.
    const bool ends_by_token = mark_tokens_(end) || InnerToken();
    const std::string character = ends_by_token ? "[\\s\\S]" : "[^<]";
    const std::string least = length("minLength");
    const std::string most = length("maxLength");
    if (least.empty() && most.empty()) {
      if (ends_by_token) return Regex(character + "*");
      return {{"type", "any_text"}, {"excludes", {end}}};
    }
    return Regex(character + "{" + (least.empty() ? "0" : least) + "," + most + "}");
  }

  // A part of a schema may refer to the definitions of the whole.
  static Json WithDefinitions(const Json& whole, Json part) {
    if (part.is_object() && whole.contains("$defs")) part["$defs"] = whole["$defs"];
    return part;
  }

  const ToolFormat& format_;
  const MarkTokens& mark_tokens_;
};

}  // namespace

std::string ToolCallsTag(const ToolFormat& format, std::span<const CallableTool> tools,
                         bool parallel, const MarkTokens& mark_tokens) {
  const Json tag = {{"type", "structural_tag"},
                    {"format", TagWriter(format, mark_tokens).Calls(tools, parallel)}};
  return tag.dump();
}

}  // namespace outrider
