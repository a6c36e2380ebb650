#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "outrider/server/openai/api_error.h"
#include "outrider/server/openai/field_reader.h"
#include "outrider/server/openai/parse_messages.h"
#include "outrider/server/openai/request.h"
#include "outrider/server/openai/request_json.h"

namespace outrider::openai {
namespace {

using nlohmann::json;

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr size_t kMaxPrompts = 1024;
constexpr size_t kMaxStopStrings = 16;
constexpr int32_t kDefaultCompletionTokens = 16;

struct UnsupportedField {
  const char* name;
  std::vector<json> neutral;  // besides null
};

// What OpenAI and vLLM have and this version does not.
void RefuseUnsupported(FieldReader& body) {
  static const std::vector<UnsupportedField> kFields = {
      {"n", {1}},
      {"best_of", {1}},
      {"echo", {false}},
      {"suffix", {""}},
      {"presence_penalty", {0}},
      {"frequency_penalty", {0}},
      {"repetition_penalty", {1}},
      {"logit_bias", {json::object()}},
      {"min_tokens", {0}},
      {"bad_words", {json::array()}},
      {"allowed_token_ids", {}},
      {"truncate_prompt_tokens", {}},
      {"prompt_logprobs", {}},
      {"use_beam_search", {false}},
      {"length_penalty", {1}},
      {"spaces_between_special_tokens", {true}},
      {"structured_outputs", {}},
      {"response_format", {json{{"type", "text"}}}},
      {"guided_json", {}},
      {"guided_regex", {}},
      {"guided_choice", {}},
      {"guided_grammar", {}},
      {"thinking_token_budget", {}},
      {"priority", {0}},
      {"cache_salt", {}},
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
      {"tools", {json::array()}},
      {"tool_choice", {"none", "auto"}},
      {"parallel_tool_calls", {true, false}},
      {"functions", {json::array()}},
      {"function_call", {"none", "auto"}},
      {"reasoning_effort", {}},
      {"reasoning", {}},
      {"include_reasoning", {true}},
      {"continue_final_message", {false}},
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

void ParseStop(FieldReader& body, SamplingParams* sampling) {
  const json* value = body.Find("stop");
  if (value == nullptr) return;
  if (!value->is_string() && !value->is_array()) {
    body.Refuse("stop",
                fmt::format("must be a string or an array of strings, not {}", Shorten(*value)));
  }
  const json list = value->is_array() ? *value : json::array({*value});
  if (list.size() > kMaxStopStrings) {
    body.Refuse("stop", fmt::format("has {} strings; at most {} are allowed", list.size(),
                                    kMaxStopStrings));
  }
  for (const json& text : list) {
    if (!text.is_string() || text.get_ref<const std::string&>().empty()) {
      body.Refuse("stop",
                  fmt::format("must hold strings that are not empty, not {}", Shorten(text)));
    }
    sampling->stop.push_back(text.get<std::string>());
  }
}

std::optional<uint64_t> ParseSeed(FieldReader& body) {
  const json* value = body.Find("seed");
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  if (value->is_number_integer()) return static_cast<uint64_t>(value->get<int64_t>());
  body.Refuse("seed", fmt::format("must be a 64-bit integer, not {}", Shorten(*value)));
}

void ParseSampling(FieldReader& body, const RequestLimits& limits, SamplingParams* sampling) {
  const SamplingDefaults& defaults = limits.defaults;
  const auto number = [&](const char* name, double max, std::optional<float> fallback,
                          float neutral) {
    const std::optional<double> value = body.Number(name, 0, max);
    return value ? static_cast<float>(*value) : fallback.value_or(neutral);
  };
  sampling->temperature = number("temperature", 2, defaults.temperature, 1.0F);
  sampling->top_p = number("top_p", 1, defaults.top_p, 1.0F);
  if (sampling->top_p <= 0) body.Refuse("top_p", "0 is out of range: must be above 0, at most 1");
  sampling->min_p = number("min_p", 1, defaults.min_p, 0.0F);
  const std::optional<int64_t> top_k = body.Integer("top_k", -1, kMaxInt32);
  // vLLM says "all tokens" by -1 or 0.
  sampling->top_k =
      top_k ? static_cast<int32_t>(std::max<int64_t>(*top_k, 0)) : defaults.top_k.value_or(0);
  sampling->seed = ParseSeed(body);
  ParseStop(body, sampling);
  sampling->stop_token_ids = body.TokenIds("stop_token_ids", limits.vocab_size);
  sampling->ignore_eos = body.Bool("ignore_eos").value_or(false);
  sampling->include_stop_str_in_output = body.Bool("include_stop_str_in_output").value_or(false);
  sampling->skip_special_tokens = body.Bool("skip_special_tokens").value_or(true);
}

bool ParseSpeculationMetrics(FieldReader& body, bool fallback) {
  const auto level = body.String("per_request_spec_decode_metrics");
  if (!level) return fallback;
  if (*level == "summary") return true;
  if (*level == "off" || *level == "none") return false;
  if (*level == "detailed") {
    body.Refuse("per_request_spec_decode_metrics", "\"detailed\" is not supported yet");
  }
  body.Refuse("per_request_spec_decode_metrics",
              fmt::format("must be \"summary\" or \"off\", not {}", Shorten(json(*level))));
}

// Everything that both endpoints have.
void ParseShared(FieldReader& body, const RequestLimits& limits, TokenRequest* request) {
  request->model = body.String("model").value_or("");
  ParseSampling(body, limits, &request->sampling);
  ParseStreamOptions(body, &request->answer);
  request->answer.return_token_ids = body.Bool("return_token_ids").value_or(false);
  request->answer.speculation_metrics = ParseSpeculationMetrics(body, limits.speculation_metrics);
  RefuseUnsupported(body);
  IgnoreClientNames(body);
}

std::optional<int32_t> ParseTokenCount(FieldReader& body, const char* name) {
  const std::optional<int64_t> value = body.Integer(name, 1, kMaxInt32);
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
  request.max_tokens = ParseTokenCount(fields, "max_tokens");
  request.add_special_tokens = fields.Bool("add_special_tokens").value_or(true);
  if (const auto count = fields.Integer("logprobs", 0, limits.max_logprobs)) {
    request.answer.logprobs = static_cast<int32_t>(*count);
  }
  ParseShared(fields, limits, &request);
  fields.RefuseUnknown();
  request.sampling.logprobs = request.answer.logprobs;
  return request;
}

TokenRequest ParseChatRequest(std::string_view body, const RequestLimits& limits) {
  const json value = ParseRequestJson(body);
  FieldReader fields(value, "");
  TokenRequest request;
  request.answer.chat = true;
  request.chat.messages_json = ParseMessages(fields.Find("messages"));
  request.chat.add_generation_prompt = fields.Bool("add_generation_prompt").value_or(true);
  if (const json* arguments = fields.Find("chat_template_kwargs")) {
    if (!arguments->is_object()) {
      fields.Refuse("chat_template_kwargs",
                    fmt::format("must be an object, not {}", Shorten(*arguments)));
    }
    request.chat.template_arguments_json = arguments->dump();
  }
  request.max_tokens = ParseTokenCount(fields, "max_completion_tokens");
  const std::optional<int32_t> old_name = ParseTokenCount(fields, "max_tokens");
  if (!request.max_tokens) request.max_tokens = old_name;
  const bool logprobs = fields.Bool("logprobs").value_or(false);
  const std::optional<int64_t> top = fields.Integer("top_logprobs", 0, limits.max_logprobs);
  if (top.value_or(0) > 0 && !logprobs) {
    fields.Refuse("top_logprobs", "is only allowed with \"logprobs\": true");
  }
  if (logprobs) request.answer.logprobs = static_cast<int32_t>(top.value_or(0));
  ParseShared(fields, limits, &request);
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
  if (request.max_tokens) return *request.max_tokens;
  if (request.answer.chat) return static_cast<int32_t>(room);
  return static_cast<int32_t>(std::min<int64_t>(kDefaultCompletionTokens, room));
}

}  // namespace outrider::openai
