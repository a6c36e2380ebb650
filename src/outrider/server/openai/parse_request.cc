#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "outrider/server/openai/api_error.h"
#include "outrider/server/openai/field_reader.h"
#include "outrider/server/openai/parse_chat_template.h"
#include "outrider/server/openai/parse_sampling.h"
#include "outrider/server/openai/parse_structured_output.h"
#include "outrider/server/openai/parse_tools.h"
#include "outrider/server/openai/request.h"
#include "outrider/server/openai/request_json.h"

namespace outrider::openai {
namespace {

using nlohmann::json;

constexpr size_t kMaxPrompts = 1024;
constexpr size_t kMaxChoices = 1024;
constexpr int32_t kDefaultCompletionTokens = 16;

struct UnsupportedField {
  const char* name;
  std::vector<json> neutral;  // besides null
};

// What OpenAI and vLLM have and this version does not.
void RefuseUnsupported(FieldReader& body) {
  static const std::vector<UnsupportedField> kFields = {
      {"best_of", {1}},
      {"suffix", {""}},
      {"truncate_prompt_tokens", {}},
      {"use_beam_search", {false}},
      {"length_penalty", {1}},
      {"spaces_between_special_tokens", {true}},
      {"thinking_token_budget", {}},
      {"request_id", {}},
      {"stream_interval", {1}},
      {"kv_transfer_params", {}},
      {"logits_processors", {}},
      {"return_tokens_as_token_ids", {false}},
  };
  for (const UnsupportedField& field : kFields) body.Unsupported(field.name, field.neutral);
}

void RefuseUnsupportedInChat(FieldReader& body) {
  static const std::vector<UnsupportedField> kFields = {
      {"functions", {json::array()}},
      {"function_call", {"none", "auto"}},
      {"reasoning", {}},
      {"chat_template", {}},
      {"documents", {json::array()}},
      {"mm_processor_kwargs", {}},
      {"media_io_kwargs", {}},
      {"modalities", {json::array({"text"})}},
      {"audio", {}},
      {"prediction", {}},
      {"web_search_options", {}},
      {"verbosity", {"medium"}},
      {"store", {false}},
      {"metadata", {json::object()}},
      {"service_tier", {"auto", "default"}},
      {"prompt_cache_retention", {}},
      {"add_special_tokens", {false}},
      {"echo", {false}},
  };
  for (const UnsupportedField& field : kFields) body.Unsupported(field.name, field.neutral);
}

// Who asks changes nothing in the answer: read for their type, then dropped.
void IgnoreClientNames(FieldReader& body) {
  for (const char* name : {"user", "safety_identifier", "prompt_cache_key"}) body.String(name);
}

void ParseStreamOptions(FieldReader& body, AnswerOptions* answer) {
  answer->stream = body.Bool("stream").value_or(false);
  const json* value = body.Find("stream_options");
  if (value == nullptr) return;
  if (!answer->stream) body.Refuse("stream_options", "is only allowed with \"stream\": true");
  FieldReader options(*value, "stream_options");
  answer->include_usage = options.Bool("include_usage").value_or(false);
  answer->continuous_usage = options.Bool("continuous_usage_stats").value_or(false);
  options.Unsupported("include_obfuscation", {false});
  options.RefuseUnknown();
}

SpeculationMetrics ParseSpeculationMetrics(FieldReader& body, SpeculationMetrics fallback) {
  const auto level = body.String("per_request_spec_decode_metrics");
  if (!level) return fallback;
  if (*level == "detailed") return SpeculationMetrics::kDetailed;
  if (*level == "summary") return SpeculationMetrics::kSummary;
  if (*level == "off" || *level == "none") return SpeculationMetrics::kOff;
  body.Refuse(
      "per_request_spec_decode_metrics",
      fmt::format("must be \"detailed\", \"summary\" or \"off\", not {}", Shorten(json(*level))));
}

// How the request runs, which its answer does not depend on.
void ParseScheduling(FieldReader& body, const RequestLimits& limits, TokenRequest* request) {
  request->priority =
      static_cast<int32_t>(body.Integer("priority", -kMaxInt32, kMaxInt32).value_or(0));
  if (auto salt = body.String("cache_salt")) {
    if (salt->empty()) body.Refuse("cache_salt", "must be a string that is not empty");
    request->cache_salt = std::move(*salt);
  }
  const json* value = body.Find("speculation");
  if (value == nullptr) return;
  FieldReader speculation(*value, "speculation");
  if (const auto k =
          speculation.Integer("num_speculative_tokens", 0, limits.num_speculative_tokens)) {
    request->num_speculative_tokens = static_cast<int32_t>(*k);
  }
  speculation.RefuseUnknown();
}

// Everything that both endpoints have.
void ParseShared(FieldReader& body, std::string_view raw, const RequestLimits& limits,
                 TokenRequest* request) {
  request->model = body.String("model").value_or("");
  ParseSampling(body, limits, request);
  ParseStructuredOutput(body, raw, request);
  ParseStreamOptions(body, &request->answer);
  ParseScheduling(body, limits, request);
  if (const auto count = body.Integer("prompt_logprobs", 0, limits.max_logprobs)) {
    if (request->answer.stream) {
      body.Refuse("prompt_logprobs", "is only allowed without \"stream\": true");
    }
    request->answer.prompt_logprobs = static_cast<int32_t>(*count);
    request->sampling.prompt_logprobs = request->answer.prompt_logprobs;
  }
  request->answer.return_token_ids = body.Bool("return_token_ids").value_or(false);
  request->answer.speculation_metrics = ParseSpeculationMetrics(body, limits.speculation_metrics);
  RefuseUnsupported(body);
  IgnoreClientNames(body);
}

std::optional<int32_t> ParseTokenCount(FieldReader& body, const char* name, int64_t min = 1) {
  const std::optional<int64_t> value = body.Integer(name, min, kMaxInt32);
  return value ? std::optional<int32_t>(static_cast<int32_t>(*value)) : std::nullopt;
}

CompletionPrompt ParsePromptIds(const json& ids, int32_t vocab_size, const std::string& path) {
  std::vector<int32_t> result;
  result.reserve(ids.size());
  for (const json& id : ids) {
    result.push_back(ReadTokenId(id, vocab_size, fmt::format("{}[{}]", path, result.size())));
  }
  return result;
}

std::vector<CompletionPrompt> ParsePrompts(FieldReader& body, int32_t vocab_size) {
  const char* const kWanted =
      "must be a string, an array of strings, an array of token ids or an array of such arrays";
  const json* value = body.Find("prompt");
  if (value == nullptr) body.Refuse("prompt", fmt::format("is missing; it {}", kWanted));
  if (value->is_string()) return {value->get<std::string>()};
  if (!value->is_array())
    body.Refuse("prompt", fmt::format("{}, not {}", kWanted, Shorten(*value)));
  if (value->empty()) body.Refuse("prompt", fmt::format("is an empty array; it {}", kWanted));
  if ((*value)[0].is_number()) return {ParsePromptIds(*value, vocab_size, "prompt")};
  if (value->size() > kMaxPrompts) {
    body.Refuse("prompt",
                fmt::format("has {} prompts; at most {} are allowed", value->size(), kMaxPrompts));
  }
  std::vector<CompletionPrompt> prompts;
  for (const json& prompt : *value) {
    const std::string path = fmt::format("prompt[{}]", prompts.size());
    if (prompt.is_string()) {
      prompts.emplace_back(prompt.get<std::string>());
    } else if (prompt.is_array()) {
      prompts.push_back(ParsePromptIds(prompt, vocab_size, path));
    } else {
      throw RequestError(ErrorCode::kInvalidArgument, path,
                         fmt::format("{}: must be a string or an array of token ids, not {}", path,
                                     Shorten(prompt)));
    }
  }
  return prompts;
}

}  // namespace

TokenRequest ParseCompletionRequest(std::string_view body, const RequestLimits& limits) {
  const json value = ParseRequestJson(body);
  FieldReader fields(value, "");
  TokenRequest request;
  request.prompts = ParsePrompts(fields, limits.vocab_size);
  request.answer.echo = fields.Bool("echo").value_or(false);
  // OpenAI's way to score a prompt: echo it and generate nothing.
  request.max_tokens = ParseTokenCount(fields, "max_tokens", request.answer.echo ? 0 : 1);
  request.answer.echo_only = request.max_tokens == 0;
  request.add_special_tokens = fields.Bool("add_special_tokens").value_or(true);
  if (const auto count = fields.Integer("logprobs", 0, limits.max_logprobs)) {
    request.answer.logprobs = static_cast<int32_t>(*count);
  }
  ParseShared(fields, body, limits, &request);
  fields.RefuseUnknown();
  request.sampling.logprobs = request.answer.logprobs;
  if (request.answer.echo && !request.sampling.prompt_logprobs) {
    request.sampling.prompt_logprobs = request.answer.logprobs;
  }
  if (request.prompts.size() * static_cast<size_t>(request.n) > kMaxChoices) {
    fields.Refuse("n", fmt::format("{} choices for each of {} prompts; at most {} choices are "
                                   "allowed in all",
                                   request.n, request.prompts.size(), kMaxChoices));
  }
  return request;
}

TokenRequest ParseChatRequest(std::string_view body, const RequestLimits& limits) {
  const json value = ParseRequestJson(body);
  FieldReader fields(value, "");
  TokenRequest request;
  request.answer.chat = true;
  ParseChatTemplate(fields, &request.chat);
  ParseTools(fields, body, &request);
  request.answer.include_reasoning = fields.Bool("include_reasoning").value_or(true);
  request.max_tokens = ParseTokenCount(fields, "max_completion_tokens");
  const std::optional<int32_t> old_name = ParseTokenCount(fields, "max_tokens");
  if (!request.max_tokens) request.max_tokens = old_name;
  const bool logprobs = fields.Bool("logprobs").value_or(false);
  const std::optional<int64_t> top = fields.Integer("top_logprobs", 0, limits.max_logprobs);
  if (top.value_or(0) > 0 && !logprobs) {
    fields.Refuse("top_logprobs", "is only allowed with \"logprobs\": true");
  }
  if (logprobs) request.answer.logprobs = static_cast<int32_t>(top.value_or(0));
  ParseShared(fields, body, limits, &request);
  RefuseUnsupportedInChat(fields);
  fields.RefuseUnknown();
  request.sampling.logprobs = request.answer.logprobs;
  return request;
}

int32_t ResolveMaxTokens(const TokenRequest& request, int64_t prompt_tokens,
                         int32_t max_model_len) {
  const char* const param = request.answer.chat ? "messages" : "prompt";
  if (prompt_tokens == 0) {
    throw RequestError(ErrorCode::kInvalidArgument, param,
                       fmt::format("{}: is empty; at least one token is needed", param));
  }
  const int64_t room = max_model_len - prompt_tokens;
  if (room < 1) {
    throw RequestError(ErrorCode::kInvalidArgument, param,
                       fmt::format("{}: has {} tokens; the model's context of {} holds prompts of "
                                   "at most {}",
                                   param, prompt_tokens, max_model_len, max_model_len - 1),
                       "context_length_exceeded");
  }
  if (request.max_tokens && *request.max_tokens > room) {
    throw RequestError(ErrorCode::kInvalidArgument, "max_tokens",
                       fmt::format("max_tokens: {} do not fit; the prompt has {} tokens, so at "
                                   "most {} are left of the model's context of {}",
                                   *request.max_tokens, prompt_tokens, room, max_model_len),
                       "context_length_exceeded");
  }
  int32_t max_tokens = static_cast<int32_t>(room);
  if (request.max_tokens) {
    max_tokens = std::max(*request.max_tokens, 1);  // 0: the engine's one token is not shown
  } else if (!request.answer.chat) {
    max_tokens = static_cast<int32_t>(std::min<int64_t>(kDefaultCompletionTokens, room));
  }
  const int32_t most = request.answer.echo_only ? 0 : max_tokens;
  if (request.sampling.min_tokens > most) {
    throw RequestError(ErrorCode::kInvalidArgument, "min_tokens",
                       fmt::format("min_tokens: {} is out of range: must be from 0 to max_tokens, "
                                   "which is {}",
                                   request.sampling.min_tokens, most));
  }
  return max_tokens;
}

}  // namespace outrider::openai
