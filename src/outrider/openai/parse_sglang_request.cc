// A body of /generate as SGLang has it: text or token ids, and sampling_params with its names.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "outrider/openai/field_reader.h"
#include "outrider/openai/parse_sampling.h"
#include "outrider/openai/parse_shared.h"
#include "outrider/openai/raw_json.h"
#include "outrider/openai/request.h"
#include "outrider/openai/request_json.h"

namespace outrider::openai {
namespace {

using nlohmann::json;

constexpr int32_t kDefaultNewTokens = 128;
constexpr size_t kMaxBatch = 1024;

void AddTexts(FieldReader& fields, const json& value, TokenRequest* request) {
  if (value.is_string()) {
    request->prompts.emplace_back(value.get<std::string>());
    return;
  }
  if (!value.is_array() || value.empty() || value.size() > kMaxBatch) {
    fields.Refuse("text", fmt::format("must be a string or an array of 1 to {} strings, not {}",
                                      kMaxBatch, Shorten(value)));
  }
  request->answer.is_batch = true;
  for (const json& text : value) {
    if (!text.is_string()) {
      fields.Refuse("text", fmt::format("must hold strings, not {}", Shorten(text)));
    }
    request->prompts.emplace_back(text.get<std::string>());
  }
}

void AddTokenIds(FieldReader& fields, const json& value, int32_t vocab_size,
                 TokenRequest* request) {
  const bool is_batch = value.is_array() && !value.empty() && value[0].is_array();
  if (!is_batch) {
    request->prompts.emplace_back(fields.TokenIds("input_ids", vocab_size));
    return;
  }
  if (value.size() > kMaxBatch) {
    fields.Refuse("input_ids",
                  fmt::format("has {} prompts; at most {} are allowed", value.size(), kMaxBatch));
  }
  request->answer.is_batch = true;
  for (size_t i = 0; i < value.size(); ++i) {
    request->prompts.emplace_back(
        ReadTokenIds(value[i], vocab_size, fmt::format("input_ids[{}]", i)));
  }
}

void ParsePrompts(FieldReader& fields, int32_t vocab_size, TokenRequest* request) {
  const json* text = fields.Find("text");
  const json* ids = fields.Find("input_ids");
  if ((text != nullptr) == (ids != nullptr)) {
    fields.Refuse("text", "give either it or \"input_ids\"");
  }
  if (text != nullptr) {
    AddTexts(fields, *text, request);
  } else {
    AddTokenIds(fields, *ids, vocab_size, request);
  }
}

void RefuseUnsupportedInSglang(FieldReader& fields, FieldReader& sampling) {
  for (const char* name :
       {"image_data", "audio_data", "video_data", "input_embeds", "token_ids_logprob", "lora_path",
        "session_params", "custom_logit_processor", "bootstrap_host", "bootstrap_port",
        "bootstrap_room"}) {
    fields.Unsupported(name, {});
  }
  for (const char* name :
       {"return_hidden_states", "return_bytes", "return_entropy", "background"}) {
    fields.Unsupported(name, {false});
  }
  fields.Unsupported("data_parallel_rank", {0});
  for (const char* name : {"custom_params", "stop_regex"}) sampling.Unsupported(name, {});
}

// Log-probabilities of the answer's tokens, and of the prompt's from logprob_start_len on.
void ParseSglangLogprobs(FieldReader& fields, const RequestLimits& limits, TokenRequest* request) {
  const bool wanted = fields.Bool("return_logprob").value_or(false);
  const auto start = fields.Integer("logprob_start_len", -1, kMaxInt32);
  const auto top = fields.Integer("top_logprobs_num", 0, limits.max_logprobs);
  request->answer.text_in_logprobs = fields.Bool("return_text_in_logprobs").value_or(false);
  if (!wanted) return;
  request->answer.logprobs = static_cast<int32_t>(top.value_or(0));
  if (start.value_or(-1) < 0) return;
  if (request->answer.stream) {
    fields.Refuse("logprob_start_len", "must be -1 with \"stream\": true");
  }
  request->answer.logprobs_from = static_cast<int32_t>(*start);
  request->answer.prompt_logprobs = request->answer.logprobs;
}

}  // namespace

TokenRequest ParseSglangRequest(const json& value, std::string_view body,
                                const RequestLimits& limits) {
  FieldReader fields(value, "", limits.ignore_unknown_fields);
  TokenRequest request;
  request.answer.token_form = TokenForm::kSglang;
  ParsePrompts(fields, limits.vocab_size, &request);
  const json* given = fields.Find("sampling_params");
  const json sampling_value = given == nullptr ? json::object() : *given;
  FieldReader sampling(sampling_value, "sampling_params", fields);
  request.max_tokens = ParseTokenCount(sampling, "max_new_tokens", 1);
  ParseShared(fields, sampling, RawJson(body, {"sampling_params"}), limits, &request);
  if (auto seed = ParseSeed(sampling, "sampling_seed")) request.sampling.seed = seed;
  if (const auto least = sampling.Integer("min_new_tokens", 0, kMaxInt32)) {
    request.sampling.min_tokens = static_cast<int32_t>(*least);
  }
  if (sampling.Bool("no_stop_trim").value_or(false)) {
    request.sampling.include_stop_str_in_output = true;
  }
  if (auto id = fields.String("rid")) {
    if (!IsUsableRequestId(*id)) {
      fields.Refuse("rid", "must have 1 to 128 letters, digits, \"-\", \"_\", \".\" or \":\"");
    }
    request.request_id = *std::move(id);
  }
  if (auto key = fields.String("extra_key")) request.cache_salt = *std::move(key);
  fields.Bool("log_metrics");
  fields.Bool("no_logs");
  ParseSglangLogprobs(fields, limits, &request);
  RefuseUnsupportedInSglang(fields, sampling);
  ParseExperts(fields, sampling, limits, /*by_default=*/false, &request);
  ParseGeneratedFrom(fields, &request);
  if (!request.max_tokens) request.max_tokens = kDefaultNewTokens;
  sampling.RefuseUnknown();
  fields.RefuseUnknown();
  request.sampling.logprobs = request.answer.logprobs;
  request.sampling.prompt_logprobs = request.answer.prompt_logprobs;
  return request;
}

}  // namespace outrider::openai
