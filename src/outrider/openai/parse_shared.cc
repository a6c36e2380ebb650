#include "outrider/openai/parse_shared.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "outrider/openai/parse_sampling.h"
#include "outrider/openai/parse_structured_output.h"

namespace outrider::openai {
namespace {

using nlohmann::json;

constexpr int64_t kMaxStreamInterval = 1024;

struct UnsupportedField {
  const char* name;
  std::vector<json> neutral;  // besides null
};

// What OpenAI and vLLM have and this version does not.
void RefuseUnsupported(FieldReader& body) {
  static const std::vector<UnsupportedField> kFields = {
      {"use_beam_search", {false}},
      {"length_penalty", {1}},
      {"spaces_between_special_tokens", {true}},
      {"kv_transfer_params", {}},
      {"logits_processors", {json::array()}},
      {"vllm_xargs", {json::object()}},
      {"return_tokens_as_token_ids", {false}},
  };
  for (const UnsupportedField& field : kFields) body.Unsupported(field.name, field.neutral);
  body.Unsupported("best_of", {1}, "not supported: ask for n choices and take the best of them");
  body.Unsupported("suffix", {""}, "not supported: this server's models do not fill in the middle");
  body.Unsupported("thinking_token_budget", {},
                   "not supported: a text that is cut short is not what the model would write; "
                   "use \"reasoning_effort\" or \"max_tokens\"");
}

// Who asks, and what a server may keep of it, changes nothing in the answer: read for their type,
// then dropped.
void IgnoreRecords(FieldReader& body) {
  for (const char* name :
       {"user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}) {
    body.String(name);
  }
  body.Bool("store");
  if (const json* metadata = body.Find("metadata"); metadata && !metadata->is_object()) {
    body.Refuse("metadata", fmt::format("must be an object, not {}", Shorten(*metadata)));
  }
}

void ParseStreamOptions(FieldReader& body, AnswerOptions* answer) {
  answer->stream = body.Bool("stream").value_or(false);
  const json* value = body.Find("stream_options");
  if (value == nullptr) return;
  if (!answer->stream) body.Refuse("stream_options", "is only allowed with \"stream\": true");
  FieldReader options(*value, "stream_options", body);
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
  if (auto id = body.String("request_id")) {
    if (!IsUsableRequestId(*id)) {
      body.Refuse("request_id", "must have 1 to 128 letters, digits, \"-\", \"_\", \".\" or \":\"");
    }
    request->request_id = std::move(*id);
  }
  request->stream_interval =
      static_cast<int32_t>(body.Integer("stream_interval", 1, kMaxStreamInterval).value_or(1));
  const json* value = body.Find("speculation");
  if (value == nullptr) return;
  FieldReader speculation(*value, "speculation", body);
  if (const auto k =
          speculation.Integer("num_speculative_tokens", 0, limits.num_speculative_tokens)) {
    request->num_speculative_tokens = static_cast<int32_t>(*k);
  }
  speculation.RefuseUnknown();
}

}  // namespace

bool IsUsableRequestId(std::string_view id) {
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_' || c == '.' || c == ':';
  });
}

void ParseWhatRoutersAdd(FieldReader& fields, TokenRequest* request) {
  if (fields.Bool("no_stop_trim").value_or(false)) {
    request->sampling.include_stop_str_in_output = true;
  }
  fields.Unsupported("return_hidden_states", {false});
  fields.Unsupported("separate_reasoning", {true},
                     "reasoning always stands beside the text; \"include_reasoning\": false leaves "
                     "it out");
  fields.Unsupported("stream_reasoning", {true});
}

void ParseGeneratedFrom(FieldReader& body, TokenRequest* request) {
  constexpr const char* kName = "generated_from";
  const auto from = body.Integer(kName, 1, kMaxInt32);
  if (!from) return;
  auto* const ids = request->prompts.size() == 1
                        ? std::get_if<std::vector<int32_t>>(&request->prompts.front())
                        : nullptr;
  if (ids == nullptr) body.Refuse(kName, "needs one prompt of token ids");
  const auto size = static_cast<int64_t>(ids->size());
  if (*from >= size) {
    body.Refuse(kName, fmt::format("is {}, but the prompt has {} token ids: none was generated",
                                   *from, size));
  }
  if (request->n != 1) body.Refuse("n", "must be 1 with generated_from");
  if (request->grammar) {
    body.Refuse(request->grammar_field, "cannot be given with generated_from");
  }
  if (request->answer.echo) body.Refuse("echo", "cannot be given with generated_from");
  if (request->truncate_prompt_tokens != 0) {
    body.Refuse("truncate_prompt_tokens", "cannot be given with generated_from");
  }
  const auto given = static_cast<int32_t>(size - *from);
  if (request->max_tokens && *request->max_tokens != given) {
    body.Refuse("max_tokens", fmt::format("is {}, but generated_from gives {} tokens: leave it out",
                                          *request->max_tokens, given));
  }
  request->max_tokens = given;
  request->given_answer.assign(ids->begin() + *from, ids->end());
  ids->resize(static_cast<size_t>(*from));
}

void ParseExperts(FieldReader& body, FieldReader& sampling, const RequestLimits& limits,
                  bool by_default, TokenRequest* request) {
  constexpr const char* kName = "return_routed_experts";
  const std::optional<bool> asked = body.Bool(kName);
  // vLLM's name, and SGLang's.
  const auto vllms = sampling.Integer("routed_experts_prompt_start", 0, kMaxInt32);
  const auto sglangs = body.Integer("routed_experts_start_len", 0, kMaxInt32);
  if (vllms && sglangs && *vllms != *sglangs) {
    body.Refuse("routed_experts_start_len",
                "is another name of routed_experts_prompt_start; give one of them");
  }
  if (asked.value_or(false) && !limits.tells_experts) {
    body.Refuse(kName, "is off: this server was started without --enable-return-routed-experts");
  }
  const auto from = static_cast<int32_t>(vllms.value_or(sglangs.value_or(0)));
  if (asked.value_or(by_default && limits.tells_experts)) {
    request->experts_from = from;
  } else if (from > 0) {
    body.Refuse(vllms ? "routed_experts_prompt_start" : "routed_experts_start_len",
                limits.tells_experts
                    ? "is only allowed with \"return_routed_experts\": true"
                    : "is off: this server was started without --enable-return-routed-experts");
  }
}

std::optional<int32_t> ParseTokenCount(FieldReader& fields, const char* name, int64_t min) {
  const std::optional<int64_t> value = fields.Integer(name, min, kMaxInt32);
  return value ? std::optional<int32_t>(static_cast<int32_t>(*value)) : std::nullopt;
}

void ParseTokenLogprobs(FieldReader& fields, const RequestLimits& limits, TokenRequest* request) {
  if (const auto count = fields.Integer("logprobs", 0, limits.max_logprobs)) {
    request->answer.logprobs = static_cast<int32_t>(*count);
  }
  request->sampling.logprobs = request->answer.logprobs;
}

void ParseShared(FieldReader& body, FieldReader& sampling, std::string_view raw,
                 const RequestLimits& limits, TokenRequest* request) {
  request->model = body.String("model").value_or("");
  ParseSampling(sampling, limits, request);
  ParseStructuredOutput(sampling, raw, request);
  ParseStreamOptions(body, &request->answer);
  ParseScheduling(body, limits, request);
  if (const auto count = sampling.Integer("prompt_logprobs", 0, limits.max_logprobs)) {
    if (request->answer.stream) {
      sampling.Refuse("prompt_logprobs", "is only allowed without \"stream\": true");
    }
    request->answer.prompt_logprobs = static_cast<int32_t>(*count);
    request->sampling.prompt_logprobs = request->answer.prompt_logprobs;
  }
  // -1: as many as the context takes.
  if (const auto kept = sampling.Integer("truncate_prompt_tokens", -1, kMaxInt32)) {
    if (*kept == 0) {
      sampling.Refuse("truncate_prompt_tokens", "0 is out of range: must be -1 or at least 1");
    }
    request->truncate_prompt_tokens = static_cast<int32_t>(*kept);
  }
  request->answer.return_token_ids = body.Bool("return_token_ids").value_or(false);
  request->answer.speculation_metrics = ParseSpeculationMetrics(body, limits.speculation_metrics);
  RefuseUnsupported(sampling);
  IgnoreRecords(body);
}

}  // namespace outrider::openai
