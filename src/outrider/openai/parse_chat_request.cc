// A body of /v1/chat/completions.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/openai/field_reader.h"
#include "outrider/openai/parse_chat_template.h"
#include "outrider/openai/parse_shared.h"
#include "outrider/openai/parse_tools.h"
#include "outrider/openai/request.h"
#include "outrider/openai/request_json.h"

namespace outrider::openai {
namespace {

using nlohmann::json;

void RefuseUnsupportedInChat(FieldReader& body) {
  struct Field {
    const char* name;
    std::vector<json> neutral;  // besides null
  };
  static const std::vector<Field> kFields = {
      {"functions", {json::array()}},
      {"function_call", {"none", "auto"}},
      {"reasoning", {}},
      {"chat_template", {}},
      {"documents", {json::array()}},
      {"modalities", {json::array({"text"})}},
      {"audio", {}},
      {"prediction", {}},
      {"web_search_options", {}},
      {"service_tier", {"auto", "default"}},
      {"add_special_tokens", {false}},
  };
  for (const Field& field : kFields) body.Unsupported(field.name, field.neutral);
}

// How images and sounds are to be read, of which there are none: parts that are no text are
// refused.
void IgnoreMediaOptions(FieldReader& body) {
  for (const char* name : {"mm_processor_kwargs", "media_io_kwargs"}) {
    const json* value = body.Find(name);
    if (value != nullptr && !value->is_object()) {
      body.Refuse(name, fmt::format("must be an object, not {}", Shorten(*value)));
    }
  }
}

// What the answer repeats: the last message, when it is the assistant's.
std::string EchoOf(const std::string& messages_json) {
  const json last = json::parse(messages_json).back();
  return last["role"] == "assistant" ? last["content"].get<std::string>() : "";
}

}  // namespace

TokenRequest ParseChatRequest(std::string_view body, const RequestLimits& limits) {
  const RequestJson parsed = ParseRequestJson(body);
  const json& value = *parsed;
  FieldReader fields(value, "", limits.ignore_unknown_fields);
  TokenRequest request;
  request.answer.chat = true;
  ParseChatTemplate(fields, body, &request.chat);
  if (fields.Bool("echo").value_or(false)) {
    request.answer.echoed_message = EchoOf(request.chat.messages_json);
  }
  ParseTools(fields, body, &request);
  request.include_reasoning = fields.Bool("include_reasoning").value_or(true);
  request.max_tokens = ParseTokenCount(fields, "max_completion_tokens", 1);
  const std::optional<int32_t> old_name = ParseTokenCount(fields, "max_tokens", 1);
  if (!request.max_tokens) request.max_tokens = old_name;
  const bool logprobs = fields.Bool("logprobs").value_or(false);
  const std::optional<int64_t> top = fields.Integer("top_logprobs", 0, limits.max_logprobs);
  if (top.value_or(0) > 0 && !logprobs) {
    fields.Refuse("top_logprobs", "is only allowed with \"logprobs\": true");
  }
  if (logprobs) request.answer.logprobs = static_cast<int32_t>(top.value_or(0));
  ParseShared(fields, fields, body, limits, &request);
  ParseExperts(fields, fields, limits, /*by_default=*/true, &request);
  request.answer.sglangs_experts = fields.Bool("return_routed_experts").value_or(false);
  RefuseUnsupportedInChat(fields);
  IgnoreMediaOptions(fields);
  ParseWhatRoutersAdd(fields, &request);
  fields.RefuseUnknown();
  request.sampling.logprobs = request.answer.logprobs;
  return request;
}

}  // namespace outrider::openai
