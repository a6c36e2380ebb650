#include "outrider/server/output/tool_grammar.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "outrider/base/error.h"

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
    if (format_.key_values) {
      AddKeyValues(tool, schema, &call);
    } else {
      if (format_.fenced) call.push_back(Text("```json\n"));
      call.push_back(JsonValue(schema));
      if (format_.fenced) call.push_back(Text("\n```"));
    }
    call.push_back(Mark(format_.call_end));
    return Sequence(std::move(call));
  }

  Json Calls(std::span<const CallableTool> tools, bool parallel) const {
    Json choices = Json::array();
    for (const CallableTool& tool : tools) choices.push_back(Call(tool));
    const Json call = Either(std::move(choices));
    Json all = Json::array();
    if (!format_.section_begin.empty()) all.push_back(Mark(format_.section_begin));
    all.push_back(call);
    // DeepSeek-V3 and GLM-4.5 write each call on lines of its own.
    const std::string_view separator = format_.fenced ? "\n" : format_.line_end;
    if (parallel) {
      all.push_back(
          Repeated(separator.empty() ? call : Sequence(Json::array({Text(separator), call}))));
    }
    if (!format_.section_end.empty()) all.push_back(Mark(format_.section_end));
    return Sequence(std::move(all));
  }

 private:
  Json Mark(std::string_view mark) const {
    const std::optional<int32_t> token = mark_tokens_(mark);
    if (!token) return Text(mark);
    return {{"type", "token"}, {"token", *token}};
  }

  Json SchemaOf(const CallableTool& tool) const {
    if (tool.parameters.empty()) return {{"type", "object"}, {"additionalProperties", true}};
    Json schema = Json::parse(tool.parameters);
    constexpr std::array kOthers = {"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"};
    const bool open = std::none_of(kOthers.begin(), kOthers.end(),
                                   [&](const char* name) { return schema.contains(name); });
    if (open) schema["type"] = "object";
    const bool object = schema.contains("type") && schema["type"] == "object";
    if (!object && (schema.contains("type") || format_.key_values)) {
      throw InvalidArgument(
          "tools: the parameters of \"{}\" must be a schema with \"type\": \"object\", to force a "
          "call",
          tool.name);
    }
    return schema;
  }

  // The schema's properties in their order; others where it allows them.
  void AddKeyValues(const CallableTool& tool, const Json& schema, Json* call) const {
    const auto member = [&](const char* name, const Json& otherwise) {
      return schema.contains(name) ? schema[name] : otherwise;
    };
    call->push_back(Text(format_.line_end));
    const Json properties = member("properties", Json::object());
    const Json required = member("required", Json::array());
    const Json others = member("additionalProperties", false);
    const Json any = others.is_object() ? others : Json::object();
    const auto is_required = [&](const std::string& name) {
      return std::find(required.begin(), required.end(), name) != required.end();
    };
    for (const auto& [name, property] : properties.items()) {
      Json argument = Argument(Text(name), Value(tool, schema, name, property));
      call->push_back(is_required(name) ? std::move(argument) : Optional(std::move(argument)));
    }
    for (const Json& name : required) {
      if (!name.is_string() || properties.contains(name.get<std::string>())) continue;
      call->push_back(
          Argument(Text(name.get<std::string>()), JsonValue(WithDefinitions(schema, any))));
    }
    if (others != false) {
      call->push_back(Repeated(
          Argument(Regex("[a-zA-Z_][a-zA-Z0-9_]{0,63}"), JsonValue(WithDefinitions(schema, any)))));
    }
  }

  Json Argument(Json key, Json value) const {
    return Sequence(Json::array({Mark("<arg_key>"), std::move(key), Mark("</arg_key>"),
                                 Text(format_.line_end), Mark("<arg_value>"), std::move(value),
                                 Mark("</arg_value>"), Text(format_.line_end)}));
  }

  // Strings stand as they are, everything else is JSON. A string that other types are allowed
  // beside is quoted: nobody could tell the text 5 from the number.
  Json Value(const CallableTool& tool, const Json& schema, const std::string& name,
             const Json& property) const {
    if (!tool.string_parameters.contains(name)) {
      return JsonValue(WithDefinitions(schema, property));
    }
    const auto choices = property.find("enum");
    if (choices != property.end() && choices->is_array()) {
      Json texts = Json::array();
      for (const Json& choice : *choices) {
        if (choice.is_string()) texts.push_back(Text(choice.get<std::string>()));
      }
      if (!texts.empty()) return Either(std::move(texts));
    }
    if (property.contains("const") && property["const"].is_string()) {
      return Text(property["const"].get<std::string>());
    }
    if (property.contains("pattern") && property["pattern"].is_string()) {
      return Regex(property["pattern"].get<std::string>());
    }
    return AnyString(property);
  }

  Json AnyString(const Json& property) const {
    const auto length = [&](const char* bound) -> std::string {
      const auto found = property.find(bound);
      return found != property.end() && found->is_number_unsigned() ? found->dump() : "";
    };
    // Where the mark that ends the value is no token, no '<' may look like it.
    const std::string character = mark_tokens_("</arg_value>") ? "[\\s\\S]" : "[^<]";
    const std::string least = length("minLength");
    const std::string most = length("maxLength");
    if (least.empty() && most.empty()) {
      if (mark_tokens_("</arg_value>")) return Regex(character + "*");
      return {{"type", "any_text"}, {"excludes", {"</arg_value>"}}};
    }
    return Regex(character + "{" + (least.empty() ? "0" : least) + "," + most + "}");
  }

  // A part of a schema may refer to the definitions of the whole.
  static Json WithDefinitions(const Json& schema, Json part) {
    for (const char* name : {"$defs", "definitions"}) {
      if (part.is_object() && schema.contains(name) && !part.contains(name)) {
        part[name] = schema[name];
      }
    }
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
