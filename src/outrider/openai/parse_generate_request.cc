// A body of /generate, or of /inference/v1/generate, which are alike.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "outrider/openai/field_reader.h"
#include "outrider/openai/parse_shared.h"
#include "outrider/openai/raw_json.h"
#include "outrider/openai/request.h"
#include "outrider/openai/request_json.h"

namespace outrider::openai {

using nlohmann::json;

TokenRequest ParseGenerateRequest(std::string_view body, const RequestLimits& limits,
                                  TokenForm form) {
  const RequestJson parsed = ParseRequestJson(body);
  const json& value = *parsed;
  const bool is_sglangs = form == TokenForm::kOutrider && value.is_object() &&
                          !value.contains("token_ids") &&
                          (value.contains("input_ids") || value.contains("text"));
  if (is_sglangs) return ParseSglangRequest(value, body, limits);
  FieldReader fields(value, "", limits.ignore_unknown_fields);
  TokenRequest request;
  request.answer.token_form = form;
  for (const char* name : {"features", "kv_transfer_params"}) fields.Unsupported(name, {});
  if (fields.Find("token_ids") == nullptr) {
    fields.Refuse("token_ids", "is missing; it must be an array of token ids");
  }
  request.prompts.emplace_back(fields.TokenIds("token_ids", limits.vocab_size));
  const json* given = fields.Find("sampling_params");
  const json sampling_value = given == nullptr ? json::object() : *given;
  FieldReader sampling(sampling_value, "sampling_params", fields);
  request.max_tokens = ParseTokenCount(sampling, "max_tokens", 1);
  ParseTokenLogprobs(sampling, limits, &request);
  ParseShared(fields, sampling, RawJson(body, {"sampling_params"}), limits, &request);
  ParseExperts(fields, sampling, limits, /*by_default=*/true, &request);
  ParseGeneratedFrom(fields, &request);
  sampling.RefuseUnknown();
  fields.RefuseUnknown();
  return request;
}

}  // namespace outrider::openai
