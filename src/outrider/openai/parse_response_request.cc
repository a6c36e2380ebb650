// A body of /v1/responses.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "outrider/openai/field_reader.h"
#include "outrider/openai/parse_chat_template.h"
#include "outrider/openai/parse_response_input.h"
#include "outrider/openai/parse_shared.h"
#include "outrider/openai/parse_tools.h"
#include "outrider/openai/raw_json.h"
#include "outrider/openai/request.h"
#include "outrider/openai/request_json.h"

namespace outrider::openai {
namespace {

using nlohmann::json;

// What the API has and a server that keeps nothing between requests does not.
void RefuseUnsupportedInResponses(FieldReader& body) {
  const auto refuse = [&](const char* name, const std::vector<json>& neutral) {
    body.Unsupported(name, neutral);
  };
  refuse("previous_response_id", {});
  refuse("conversation", {});
  refuse("prompt", {});
  refuse("background", {false});
  refuse("max_tool_calls", {});
  // A prompt that is too long is refused in either case.
  refuse("truncation", {"disabled", "auto"});
  refuse("service_tier", {"auto", "default"});
  refuse("context_management", {json::array()});
  // What these responses have no place for.
  refuse("prompt_logprobs", {});
  refuse("return_token_ids", {false});
  refuse("per_request_spec_decode_metrics", {"off", "none"});
  refuse("n", {1});
  refuse("top_logprobs", {0});
}

// Parts that answers never have, such as encrypted reasoning: to include them asks for nothing.
void ParseInclude(FieldReader& body) {
  const json* list = body.Find("include");
  if (list == nullptr) return;
  const auto is_text = [](const json& part) { return part.is_string(); };
  if (!list->is_array() || !std::ranges::all_of(*list, is_text)) {
    body.Refuse("include", fmt::format("must be a list of strings, not {}", Shorten(*list)));
  }
  static constexpr std::string_view kLogprobs = "message.output_text.logprobs";
  if (std::find(list->begin(), list->end(), kLogprobs) != list->end()) {
    body.Unsupported("include", {},
                     "\"message.output_text.logprobs\" is not supported yet by this server; leave "
                     "it out");
  }
}

// text.format in the place of response_format.
void ParseTextFormat(FieldReader& body, std::string_view raw, TokenRequest* request) {
  const json* value = body.Find("text");
  if (value == nullptr) return;
  FieldReader text(*value, "text", body);
  ParseVerbosity(text, &request->chat);
  if (const json* format_value = text.Find("format")) {
    FieldReader format(*format_value, "text.format", text);
    const std::string type = format.String("type").value_or("");
    if (type == "json_object") {
      request->grammar = GrammarSpec{GrammarKind::kJsonObject, {}, {}};
    } else if (type == "json_schema") {
      for (const char* name : {"name", "description"}) format.String(name);
      format.Bool("strict");  // output follows the schema in any case
      if (format.Find("schema") == nullptr) format.Refuse("schema", "is missing");
      request->grammar = GrammarSpec{
          GrammarKind::kJsonSchema, std::string(RawJson(raw, {"text", "format", "schema"})), {}};
    } else if (type != "text") {
      format.Refuse("type", R"(must be "text", "json_object" or "json_schema")");
    }
    if (request->grammar) request->grammar_field = "text.format";
    format.RefuseUnknown();
  }
  text.RefuseUnknown();
}

std::optional<std::string> ParseReasoning(FieldReader& body) {
  const json* value = body.Find("reasoning");
  if (value == nullptr) return std::nullopt;
  FieldReader reasoning(*value, "reasoning", body);
  std::optional<std::string> effort = reasoning.String("effort");
  // The reasoning itself is in the answer, so there is nothing to summarise.
  for (const char* name : {"summary", "generate_summary"}) reasoning.String(name);
  reasoning.RefuseUnknown();
  return effort;
}

// The members of the answer that repeat the request.
std::string RepeatedMembers(const TokenRequest& request, const json& body, std::string_view raw,
                            const std::optional<std::string>& effort) {
  const auto given = [&](const char* name, const char* otherwise) {
    const auto found = body.find(name);
    return found == body.end() || found->is_null() ? std::string(otherwise)
                                                   : std::string(RawJson(raw, {name}));
  };
  const std::string format(RawJson(raw, {"text", "format"}));
  return fmt::format(
      R"("instructions":{},"max_output_tokens":{},"max_tool_calls":null,"metadata":{},)"
      R"("parallel_tool_calls":{},"previous_response_id":null,"background":false,)"
      R"("reasoning":{{"effort":{},"summary":null}},"service_tier":"default","store":false,)"
      R"("temperature":{},"text":{{"format":{}}},"tool_choice":{},"tools":{},"top_logprobs":0,)"
      R"("top_p":{},"truncation":"disabled","user":{})",
      given("instructions", "null"), given("max_output_tokens", "null"), given("metadata", "{}"),
      request.tools.parallel, effort ? json(*effort).dump() : "null", request.sampling.temperature,
      format.empty() || format == "null" ? R"({"type":"text"})" : format,
      given("tool_choice", request.tools.functions.empty() ? "\"none\"" : "\"auto\""),
      given("tools", "[]"), request.sampling.top_p, given("user", "null"));
}

}  // namespace

TokenRequest ParseResponseRequest(std::string_view body, const RequestLimits& limits) {
  const RequestJson parsed = ParseRequestJson(body);
  const json& value = *parsed;
  FieldReader fields(value, "", limits.ignore_unknown_fields);
  TokenRequest request;
  request.answer.chat = true;
  request.chat.messages_json = ParseResponseInput(fields);
  const std::optional<std::string> effort = ParseReasoning(fields);
  ParseTemplateArguments(fields, "reasoning", effort, &request.chat);
  ParseFlatTools(fields, body, &request);
  request.answer.custom_tools = request.tools.custom;
  ParseTextFormat(fields, body, &request);
  request.max_tokens = ParseTokenCount(fields, "max_output_tokens", 1);
  ParseInclude(fields);
  RefuseUnsupportedInResponses(fields);
  ParseShared(fields, fields, body, limits, &request);
  fields.RefuseUnknown();
  request.response_members = RepeatedMembers(request, value, body, effort);
  return request;
}

}  // namespace outrider::openai
