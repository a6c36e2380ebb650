// A body of /v1/messages.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "outrider/openai/api_error.h"
#include "outrider/openai/field_reader.h"
#include "outrider/openai/parse_chat_template.h"
#include "outrider/openai/parse_message_blocks.h"
#include "outrider/openai/parse_sampling.h"
#include "outrider/openai/parse_shared.h"
#include "outrider/openai/parse_tools.h"
#include "outrider/openai/raw_json.h"
#include "outrider/openai/request.h"
#include "outrider/openai/request_json.h"

namespace outrider::openai {
namespace {

using nlohmann::json;

// By this error's name clients know to send the whole conversation, as they do without threads.
// Nothing else would do: the next request of a thread has its new messages only.
void RefuseThread(FieldReader& body) {
  if (body.Find("thread") == nullptr) return;
  throw RequestError(ErrorCode::kInvalidArgument, "thread",
                     "thread: this server keeps no conversations; send all messages",
                     "thread_unsupported_request");
}

// What the API has and this server does not.
void RefuseUnsupportedInMessages(FieldReader& body) {
  const auto refuse = [&](const char* name, const std::vector<json>& neutral) {
    body.Unsupported(name, neutral);
  };
  refuse("container", {});
  refuse("context_management", {json({{"edits", json::array()}})});
  refuse("mcp_servers", {json::array()});
  refuse("service_tier", {"auto", "standard_only"});
  refuse("speed", {"standard"});
  refuse("inference_geo", {});
  refuse("fallbacks", {json::array()});
  refuse("diagnostics", {});
  // What these answers have no place for.
  refuse("logprobs", {false});
  refuse("prompt_logprobs", {});
  refuse("return_token_ids", {false});
  refuse("per_request_spec_decode_metrics", {"off", "none"});
  refuse("stream_options", {});
  refuse("n", {1});
  body.Unsupported("stop", {}, "is not of this API; use \"stop_sequences\"");
}

// {"type": "json_schema", "schema"}: what the text must be.
void ParseOutputFormat(FieldReader& owner, const char* name, std::string_view raw,
                       TokenRequest* request) {
  const json* value = owner.Find(name);
  if (value == nullptr) return;
  FieldReader format(*value, owner.PathOf(name), owner);
  if (format.String("type") != "json_schema") format.Refuse("type", R"(must be "json_schema")");
  if (format.Find("schema") == nullptr) format.Refuse("schema", "is missing");
  format.RefuseUnknown();
  request->grammar =
      GrammarSpec{GrammarKind::kJsonSchema, std::string(RawJson(raw, {name, "schema"})), {}};
  request->grammar_field = owner.PathOf(name);
}

// output_config and, its older place, output_format. Returns the effort.
std::optional<std::string> ParseOutputConfig(FieldReader& body, std::string_view raw,
                                             TokenRequest* request) {
  ParseOutputFormat(body, "output_format", raw, request);
  const json* value = body.Find("output_config");
  if (value == nullptr) return std::nullopt;
  FieldReader config(*value, "output_config", body);
  std::optional<std::string> effort = config.String("effort");
  ParseOutputFormat(config, "format", RawJson(raw, {"output_config"}), request);
  config.RefuseUnknown();
  return effort;
}

// Whether the template switches thinking on. A budget is what the model should aim at, of which
// these models know nothing: max_tokens ends the answer.
std::optional<bool> ParseThinking(FieldReader& body, TokenRequest* request) {
  const json* value = body.Find("thinking");
  if (value == nullptr) return std::nullopt;
  FieldReader thinking(*value, "thinking", body);
  const std::string type = thinking.String("type").value_or("");
  if (type != "enabled" && type != "adaptive" && type != "disabled") {
    thinking.Refuse("type", R"(must be "enabled", "adaptive" or "disabled")");
  }
  thinking.Integer("budget_tokens", 1, kMaxInt32);
  const std::string display = thinking.String("display").value_or("summarized");
  if (display != "summarized" && display != "omitted") {
    thinking.Refuse("display", R"(must be "summarized" or "omitted")");
  }
  request->include_reasoning = display != "omitted";
  thinking.RefuseUnknown();
  return type != "disabled";
}

}  // namespace

TokenRequest ParseMessageRequest(std::string_view body, const RequestLimits& limits,
                                 bool only_prompt) {
  const RequestJson parsed = ParseRequestJson(body);
  const json& value = *parsed;
  FieldReader fields(value, "", limits.ignore_unknown_fields);
  RefuseThread(fields);
  TokenRequest request;
  request.answer.chat = true;
  ParseMessageBlocks(fields, body, &request.chat);
  ParseMessageTools(fields, body, &request);
  const std::optional<bool> thinks = ParseThinking(fields, &request);
  const std::optional<std::string> effort = ParseOutputConfig(fields, body, &request);
  ParseTemplateArguments(fields, "output_config.effort", effort, &request.chat);
  if (thinks) SetThinking(*thinks, &request.chat);
  fields.Object("cache_control");
  request.max_tokens = ParseTokenCount(fields, "max_tokens", 1);
  if (!request.max_tokens && !only_prompt) {
    fields.Refuse("max_tokens", "is missing; it must be a whole number of at least 1");
  }
  RefuseUnsupportedInMessages(fields);
  ParseStop(fields, "stop_sequences", &request.sampling);
  ParseShared(fields, fields, body, limits, &request);
  fields.RefuseUnknown();
  return request;
}

}  // namespace outrider::openai
