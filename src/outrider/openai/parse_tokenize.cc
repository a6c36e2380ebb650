#include "outrider/openai/parse_tokenize.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "outrider/openai/field_reader.h"
#include "outrider/openai/parse_chat_template.h"
#include "outrider/openai/parse_tools.h"
#include "outrider/openai/request_json.h"

namespace outrider::openai {

using nlohmann::json;

TokenizeRequest ParseTokenizeRequest(std::string_view body) {
  const RequestJson parsed = ParseRequestJson(body);
  const json& value = *parsed;
  FieldReader fields(value, "");
  TokenizeRequest request;
  request.model = fields.String("model").value_or("");
  request.return_token_strings = fields.Bool("return_token_strs").value_or(false);
  if (value.contains("messages")) {
    TokenRequest chat;
    ParseChatTemplate(fields, body, &chat.chat);
    ParseTools(fields, body, &chat);
    fields.Unsupported("add_special_tokens", {false});  // the template writes them
    request.prompt = std::move(chat.chat);
  } else {
    std::optional<std::string> prompt = fields.String("prompt");
    if (!prompt) fields.Refuse("prompt", "is missing; give \"prompt\", a string, or \"messages\"");
    request.prompt = std::move(*prompt);
    request.add_special_tokens = fields.Bool("add_special_tokens").value_or(true);
  }
  fields.RefuseUnknown();
  return request;
}

DetokenizeRequest ParseDetokenizeRequest(std::string_view body, const RequestLimits& limits) {
  const RequestJson parsed = ParseRequestJson(body);
  const json& value = *parsed;
  FieldReader fields(value, "");
  DetokenizeRequest request;
  request.model = fields.String("model").value_or("");
  if (fields.Find("tokens") == nullptr) {
    fields.Refuse("tokens", "is missing; it must be an array of token ids");
  }
  request.token_ids = fields.TokenIds("tokens", limits.vocab_size);
  fields.RefuseUnknown();
  return request;
}

std::vector<std::string> ParseAbortRequest(std::string_view body) {
  const RequestJson parsed = ParseRequestJson(body);
  const json& value = *parsed;
  FieldReader fields(value, "");
  std::vector<std::string> ids;
  for (const char* name : {"request_id", "rid"}) {  // the latter is SGLang's
    if (auto id = fields.String(name)) ids.push_back(std::move(*id));
  }
  if (const json* list = fields.Find("request_ids")) {
    if (!list->is_array()) {
      fields.Refuse("request_ids", fmt::format("must be an array, not {}", Shorten(*list)));
    }
    for (const json& id : *list) {
      if (!id.is_string()) {
        fields.Refuse("request_ids", fmt::format("must hold strings, not {}", Shorten(id)));
      }
      ids.push_back(id.get<std::string>());
    }
  }
  if (ids.empty()) {
    fields.Refuse("request_id", "is missing; give it, a string, or \"request_ids\"");
  }
  fields.RefuseUnknown();
  return ids;
}

}  // namespace outrider::openai
