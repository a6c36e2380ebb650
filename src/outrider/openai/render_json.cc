#include "outrider/openai/render_json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "outrider/base/json_text.h"
#include "outrider/openai/api_error.h"

namespace outrider::openai {
namespace {

using nlohmann::ordered_json;

// A schema stays as the client spelled it.
std::string StructuredOutputs(const GrammarSpec& grammar) {
  std::string member;
  switch (grammar.kind) {
    case GrammarKind::kJsonObject:
      member = R"("json_object":true)";
      break;
    case GrammarKind::kJsonSchema:
      member = R"("json":)" + grammar.text;
      break;
    case GrammarKind::kRegex:
      member = R"("regex":)" + JsonString(grammar.text);
      break;
    case GrammarKind::kChoice:
      member = R"("choice":)" + ordered_json(grammar.choices).dump();
      break;
    case GrammarKind::kEbnf:
      member = R"("grammar":)" + JsonString(grammar.text);
      break;
    case GrammarKind::kStructuralTag:
    case GrammarKind::kToolCalls:
      member = R"("structural_tag":)" + JsonString(grammar.text);
      break;
  }
  return fmt::format(R"(,"structured_outputs":{{{}{}}})", member,
                     grammar.compact ? R"(,"disable_any_whitespace":true)" : "");
}

ordered_json SamplingJson(const TokenRequest& request, int32_t max_tokens) {
  const SamplingParams& sampling = request.sampling;
  ordered_json result = {{"n", request.n},
                         {"temperature", sampling.temperature},
                         {"top_p", sampling.top_p},
                         {"top_k", sampling.top_k},
                         {"min_p", sampling.min_p},
                         {"repetition_penalty", sampling.repetition_penalty},
                         {"presence_penalty", sampling.presence_penalty},
                         {"frequency_penalty", sampling.frequency_penalty},
                         {"max_tokens", max_tokens},
                         {"min_tokens", sampling.min_tokens},
                         {"stop", sampling.stop},
                         {"stop_token_ids", sampling.stop_token_ids},
                         {"ignore_eos", sampling.ignore_eos},
                         {"include_stop_str_in_output", sampling.include_stop_str_in_output},
                         {"skip_special_tokens", sampling.skip_special_tokens},
                         {"bad_words", request.bad_words}};
  if (sampling.seed) result["seed"] = *sampling.seed;
  if (request.answer.logprobs) result["logprobs"] = *request.answer.logprobs;
  if (request.answer.prompt_logprobs) result["prompt_logprobs"] = *request.answer.prompt_logprobs;
  if (request.experts_from.value_or(0) > 0) {
    result["routed_experts_prompt_start"] = *request.experts_from;
  }
  if (sampling.allowed_token_ids) result["allowed_token_ids"] = *sampling.allowed_token_ids;
  for (const TokenBias& bias : sampling.logit_bias) {
    result["logit_bias"][std::to_string(bias.token)] = bias.value;
  }
  return result;
}

}  // namespace

std::string RenderedJson(const TokenRequest& request, const std::vector<int32_t>& prompt,
                         int32_t max_tokens) {
  if (request.grammar && request.answer.chat) {
    throw RequestError(
        ErrorCode::kInvalidArgument, request.grammar_field,
        fmt::format("{}: cannot be rendered: who runs the token ids does not know where the answer "
                    "begins; send the chat to /v1/chat/completions",
                    request.grammar_field));
  }
  std::string sampling = SamplingJson(request, max_tokens).dump();
  if (request.grammar) {
    sampling.pop_back();
    sampling += StructuredOutputs(*request.grammar) + '}';
  }
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? std::string("null") : JsonString(text);
  };
  return fmt::format(
      R"({{"request_id":{},"token_ids":[{}],"features":null,"sampling_params":{},"model":{},)"
      R"("stream":{},"stream_options":null,"cache_salt":{},"priority":{},)"
      R"("kv_transfer_params":null}})",
      text_or_null(request.request_id), fmt::join(prompt, ","), sampling, JsonString(request.model),
      request.answer.stream, text_or_null(request.cache_salt), request.priority);
}

}  // namespace outrider::openai
