#include "outrider/openai/parse_structured_output.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "outrider/openai/api_error.h"
#include "outrider/openai/raw_json.h"

namespace outrider::openai {
namespace {

using nlohmann::json;

// One field at a time: what has been asked for, and the members on the way to it.
class Reader {
 public:
  Reader(FieldReader& fields, std::string_view raw, TokenRequest* request)
      : fields_(fields), raw_(raw), request_(request) {}

  /// A JSON value, or its text in a string.
  void Json(std::string_view name, GrammarKind kind) {
    const json* value = fields_.Find(name);
    if (value == nullptr) return;
    if (!value->is_object() && !value->is_string() && !value->is_boolean()) {
      fields_.Refuse(name,
                     fmt::format("must be a JSON object or its text, not {}", Shorten(*value)));
    }
    std::string text;
    if (value->is_string()) {
      text = value->get<std::string>();
      if (!json::accept(text)) fields_.Refuse(name, "is a string, but not the text of valid JSON");
    } else {
      text = RawJson(raw_, {name});
    }
    Set(name, {kind, std::move(text), {}});
  }

  void Text(std::string_view name, GrammarKind kind) {
    auto text = fields_.String(name);
    if (!text) return;
    if (text->empty()) fields_.Refuse(name, "must be a string that is not empty");
    Set(name, {kind, std::move(*text), {}});
  }

  void Choice(std::string_view name) {
    const json* value = fields_.Find(name);
    if (value == nullptr) return;
    if (!value->is_array() || value->empty()) {
      fields_.Refuse(
          name, fmt::format("must be an array of strings, at least one, not {}", Shorten(*value)));
    }
    GrammarSpec spec{.kind = GrammarKind::kChoice, .text = {}, .choices = {}};
    for (const json& choice : *value) {
      if (!choice.is_string() || choice.get_ref<const std::string&>().empty()) {
        fields_.Refuse(fmt::format("{}[{}]", name, spec.choices.size()),
                       fmt::format("must be a string that is not empty, not {}", Shorten(choice)));
      }
      spec.choices.push_back(choice.get<std::string>());
    }
    Set(name, std::move(spec));
  }

  void Set(std::string_view name, GrammarSpec spec) {
    const std::string path = fields_.PathOf(name);
    if (request_->grammar) {
      throw RequestError(ErrorCode::kInvalidArgument, path,
                         fmt::format("{}: the text is constrained by {} already; give one of them",
                                     path, request_->grammar_field));
    }
    request_->grammar = std::move(spec);
    request_->grammar_field = path;
  }

 private:
  FieldReader& fields_;
  std::string_view raw_;  // of the object that `fields` reads
  TokenRequest* request_;
};

void ParseResponseFormat(FieldReader& body, std::string_view raw, TokenRequest* request) {
  const json* value = body.Find("response_format");
  if (value == nullptr) return;
  raw = RawJson(raw, {"response_format"});
  FieldReader format(*value, "response_format", body);
  Reader reader(format, raw, request);
  const std::string type = format.String("type").value_or("");
  if (type == "json_object") {
    reader.Set("type", {GrammarKind::kJsonObject, {}, {}});
  } else if (type == "json_schema") {
    const json* wrapper = format.Find("json_schema");
    if (wrapper == nullptr) format.Refuse("json_schema", "is missing");
    FieldReader fields(*wrapper, "response_format.json_schema", format);
    for (const char* name : {"name", "description"}) fields.String(name);
    fields.Bool("strict");  // output follows the schema in any case
    if (fields.Find("schema") == nullptr) fields.Refuse("schema", "is missing");
    Reader(fields, RawJson(raw, {"json_schema"}), request).Json("schema", GrammarKind::kJsonSchema);
    fields.RefuseUnknown();
  } else if (type == "structural_tag") {
    // The tag's members stand beside "type".
    reader.Set("type", {GrammarKind::kStructuralTag, std::string(raw), {}});
    return;
  } else if (type != "text") {
    format.Refuse("type",
                  "must be \"text\", \"json_object\", \"json_schema\" or "
                  "\"structural_tag\"");
  }
  format.RefuseUnknown();
}

// `compact`: JSON is to stand on one line.
void ParseStructuredOutputs(FieldReader& body, std::string_view raw, TokenRequest* request,
                            bool* compact) {
  const json* value = body.Find("structured_outputs");
  if (value == nullptr) return;
  FieldReader fields(*value, "structured_outputs", body);
  Reader reader(fields, RawJson(raw, {"structured_outputs"}), request);
  reader.Json("json", GrammarKind::kJsonSchema);
  reader.Text("regex", GrammarKind::kRegex);
  reader.Choice("choice");
  reader.Text("grammar", GrammarKind::kEbnf);
  if (fields.Bool("json_object").value_or(false)) {
    reader.Set("json_object", {GrammarKind::kJsonObject, {}, {}});
  }
  reader.Json("structural_tag", GrammarKind::kStructuralTag);
  fields.Unsupported("disable_fallback", {true, false});  // there is one backend
  *compact = fields.Bool("disable_any_whitespace").value_or(false);
  fields.Unsupported("disable_additional_properties", {false});
  fields.Unsupported("whitespace_pattern", {});
  fields.RefuseUnknown();
}

}  // namespace

void ParseStructuredOutput(FieldReader& body, std::string_view raw, TokenRequest* request) {
  ParseResponseFormat(body, raw, request);
  bool compact = false;
  ParseStructuredOutputs(body, raw, request, &compact);
  Reader older(body, raw, request);
  older.Json("guided_json", GrammarKind::kJsonSchema);
  older.Text("guided_regex", GrammarKind::kRegex);
  older.Choice("guided_choice");
  older.Text("guided_grammar", GrammarKind::kEbnf);
  body.Unsupported("guided_decoding_backend", {"auto", "xgrammar"});
  body.Unsupported("guided_whitespace_pattern", {});
  if (request->grammar) request->grammar->compact = compact;
}

}  // namespace outrider::openai
