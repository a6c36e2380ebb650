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
    if (format_.header == HeaderKind::kTypeThenName) {
      call.insert(call.end(), {Text("function"), Mark(format_.type_end)});
    }
    call.push_back(Text(NameText(tool)));
    AddAfterName(&call);
    AddArguments(tool, &call);
    call.push_back(Mark(format_.call_end));
    return Sequence(std::move(call));
  }

  // What may follow where a text begins a call. Marks are spelled: the text around is free.
  Json Tag(const CallableTool& tool) const {
    std::string begin(format_.call_begin);
    if (format_.header == HeaderKind::kTypeThenName) {
      begin.append("function").append(format_.type_end);
    }
    begin += NameText(tool);
    Json content = Json::array();
    AddAfterName(&content);
    if (tool.is_strict) {
      AddArguments(tool, &content);
    } else {
      content.push_back(AnyArguments());
    }
    return {{"type", "tag"},
            {"begin", begin},
            {"content", Sequence(std::move(content))},
            {"end", format_.call_end}};
  }

  Json Calls(std::span<const CallableTool> tools, bool parallel) const {
    Json choices = Json::array();
    for (const CallableTool& tool : tools) choices.push_back(Call(tool));
    const Json call = Either(std::move(choices));
    Json all = Json::array();
    // DeepSeek-V4 parts calls from what was said before, and writes the marks on lines of their
    // own.
    const bool on_lines = format_.arguments == ArgumentsForm::kAttributes;
    if (on_lines) all.push_back(Text("\n\n"));
    if (format_.section_per_call) {
      AddSeveral(InSection(call), parallel, &all);
    } else {
      if (!format_.section_begin.empty()) all.push_back(Mark(format_.section_begin));
      if (on_lines) all.push_back(Text(format_.line_end));
      AddSeveral(call, parallel, &all);
      if (on_lines) all.push_back(Text(format_.line_end));
      if (!format_.section_end.empty()) all.push_back(Mark(format_.section_end));
    }
    return Sequence(std::move(all));
  }

 private:
  Json InSection(const Json& call) const {
    return Sequence(Json::array({Mark(format_.section_begin), Text(format_.line_end), call,
                                 Text(format_.line_end), Mark(format_.section_end)}));
  }

  // DeepSeek-V3, GLM-4.5 and Step-3.5 write each call on lines of its own.
  void AddSeveral(const Json& call, bool parallel, Json* all) const {
    all->push_back(call);
    if (!parallel) return;
    const std::string_view separator = IsFenced() ? "\n" : format_.line_end;
    all->push_back(
        Repeated(separator.empty() ? call : Sequence(Json::array({Text(separator), call}))));
  }

  std::string NameText(const CallableTool& tool) const {
    return format_.header == HeaderKind::kId ? "functions." + tool.name + ":" : tool.name;
  }

  void AddAfterName(Json* call) const {
    if (format_.header == HeaderKind::kId) call->push_back(Regex("[0-9]{1,3}"));
    if (!format_.header_end.empty()) call->push_back(Mark(format_.header_end));
  }

  void AddArguments(const CallableTool& tool, Json* call) const {
    const Json schema = SchemaOf(tool);
    if (IsOneByOne()) return AddKeyValues(tool, schema, call);
    if (IsFenced()) call->push_back(Text("```json\n"));
    call->push_back(JsonValue(schema));
    if (IsFenced()) call->push_back(Text("\n```"));
  }

  // Whatever a model writes up to the end of the call.
  Json AnyArguments() const {
    Json any = {{"type", "any_text"}, {"excludes", {format_.call_end}}};
    if (!format_.header_end.empty()) return any;
    // A name may begin a longer one: what follows ends it.
    return Sequence(Json::array(
        {Optional(Text("\n")),
         Either(Json::array({Text(""), Sequence(Json::array({Text(kArgumentKeyBegin), any}))}))}));
  }

  bool IsFenced() const { return format_.arguments == ArgumentsForm::kFencedJson; }
  // Each argument has marks of its own.
  bool IsOneByOne() const {
    return format_.arguments == ArgumentsForm::kKeysAndValues ||
           format_.arguments == ArgumentsForm::kAttributes ||
           format_.arguments == ArgumentsForm::kNamedTags;
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
      const bool is_text = IsText(tool, name);
      Json argument = Argument(
          Text(name), is_text,
          is_text ? TextValue(whole, property) : JsonValue(WithDefinitions(whole, property)));
      call->push_back(is_required ? std::move(argument) : Optional(std::move(argument)));
    }
    if (properties.empty() && others != false) {
      call->push_back(Repeated(Argument(Regex("[a-zA-Z_][a-zA-Z0-9_]{0,63}"), false,
                                        JsonValue(WithDefinitions(whole, others)))));
    }
  }

  // Whether a value stands as it is. Everything else is JSON. Where the tag does not tell, what may
  // be any string is one: nobody could tell the text 5 from the number.
  bool IsText(const CallableTool& tool, const std::string& name) const {
    const auto types = tool.types.find(name);
    if (types == tool.types.end()) return false;
    const bool tag_tells = format_.arguments == ArgumentsForm::kAttributes;
    return types->second.only_strings() || (!tag_tells && types->second.allows_strings());
  }

  Json Argument(Json key, bool is_text, Json value) const {
    switch (format_.arguments) {
      case ArgumentsForm::kAttributes:
        return Sequence(
            Json::array({Mark(format_.parameter_begin), std::move(key),
                         Text(is_text ? "\" string=\"true\">" : "\" string=\"false\">"),
                         std::move(value), Mark(format_.parameter_end), Text(format_.line_end)}));
      case ArgumentsForm::kNamedTags:
        return Sequence(Json::array({Mark(format_.parameter_begin), std::move(key), Text(">\n"),
                                     std::move(value), Text("\n"), Mark(format_.parameter_end),
                                     Text(format_.line_end)}));
      default:
        return Sequence(
            Json::array({Mark(kArgumentKeyBegin), std::move(key), Mark(kArgumentKeyEnd),
                         Text(format_.line_end), Mark(kArgumentValueBegin), std::move(value),
                         Mark(kArgumentValueEnd), Text(format_.line_end)}));
    }
  }

  // A string that a schema allows; nothing where it allows none.
  Json TextValue(const Json& whole, const Json& property) const {
    const Json schema = Resolved(whole, property);
    Json choices = Json::array();
    if (schema.contains("anyOf")) {
      for (const Json& choice : schema["anyOf"]) {
        Json value = TextValue(whole, choice);
        if (!value.is_null()) choices.push_back(std::move(value));
      }
    } else if (schema.contains("enum")) {
      for (const Json& choice : schema["enum"]) {
        if (choice.is_string()) choices.push_back(Text(choice.get<std::string>()));
      }
    } else if (schema.contains("const")) {
      if (schema["const"].is_string()) choices.push_back(Text(schema["const"].get<std::string>()));
    } else if (schema.contains("type") && schema["type"] != "string") {
      return nullptr;
    } else if (schema.contains("pattern")) {
      return Regex(schema["pattern"].get<std::string>());
    } else {
      return AnyString(schema);
    }
    if (choices.empty()) return nullptr;
    return Either(std::move(choices));
  }

  // What ends a value that stands as it is.
  std::string_view ValueEnd() const {
    return format_.parameter_end.empty() ? kArgumentValueEnd : format_.parameter_end;
  }

  Json AnyString(const Json& property) const {
    const auto length = [&](const char* bound) -> std::string {
      const auto found = property.find(bound);
      return found != property.end() && found->is_number_unsigned() ? found->dump() : "";
    };
    // Where the mark that ends the value has no token, no '<' may look like it.
    const bool ends_by_token = mark_tokens_(ValueEnd()) || InnerToken();
    const std::string character = ends_by_token ? "[^\\x00]" : "[^<\\x00]";
    const std::string least = length("minLength");
    const std::string most = length("maxLength");
    if (least.empty() && most.empty()) {
      if (ends_by_token) return Regex(character + "*");
      return {{"type", "any_text"}, {"excludes", {ValueEnd()}}};
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

GrammarSpec Tag(GrammarKind kind, Json format) {
  const Json tag = {{"type", "structural_tag"}, {"format", std::move(format)}};
  return {kind, tag.dump(), {}};
}

}  // namespace

GrammarSpec ForcedCalls(const ToolFormat& format, std::span<const CallableTool> tools,
                        bool parallel, const MarkTokens& mark_tokens) {
  return Tag(GrammarKind::kToolCalls, TagWriter(format, mark_tokens).Calls(tools, parallel));
}

GrammarSpec FreeTextWithCalls(const ToolFormat& format, std::span<const CallableTool> tools) {
  const MarkTokens no_tokens = [](std::string_view /*mark*/) { return std::nullopt; };
  const TagWriter writer(format, no_tokens);
  Json tags = Json::array();
  for (const CallableTool& tool : tools) tags.push_back(writer.Tag(tool));
  return Tag(
      GrammarKind::kStructuralTag,
      {{"type", "triggered_tags"}, {"triggers", {format.call_begin}}, {"tags", std::move(tags)}});
}

}  // namespace outrider
