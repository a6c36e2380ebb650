// A body of /v1/completions.
#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "outrider/openai/api_error.h"
#include "outrider/openai/field_reader.h"
#include "outrider/openai/parse_shared.h"
#include "outrider/openai/request.h"
#include "outrider/openai/request_json.h"

namespace outrider::openai {
namespace {

using nlohmann::json;

constexpr size_t kMaxPrompts = 1024;
constexpr size_t kMaxChoices = 1024;

std::vector<CompletionPrompt> ParsePrompts(FieldReader& body, int32_t vocab_size) {
  const char* const kWanted =
      "must be a string, an array of strings, an array of token ids or an array of such arrays";
  const json* value = body.Find("prompt");
  if (value == nullptr) body.Refuse("prompt", fmt::format("is missing; it {}", kWanted));
  if (value->is_string()) return {value->get<std::string>()};
  if (!value->is_array()) {
    body.Refuse("prompt", fmt::format("{}, not {}", kWanted, Shorten(*value)));
  }
  if (value->empty()) body.Refuse("prompt", fmt::format("is an empty array; it {}", kWanted));
  if ((*value)[0].is_number()) return {ReadTokenIds(*value, vocab_size, "prompt")};
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
      prompts.emplace_back(ReadTokenIds(prompt, vocab_size, path));
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
  const RequestJson parsed = ParseRequestJson(body);
  const json& value = *parsed;
  FieldReader fields(value, "", limits.ignore_unknown_fields);
  TokenRequest request;
  request.prompts = ParsePrompts(fields, limits.vocab_size);
  request.answer.echo = fields.Bool("echo").value_or(false);
  // OpenAI's way to score a prompt: echo it and generate nothing.
  request.max_tokens = ParseTokenCount(fields, "max_tokens", request.answer.echo ? 0 : 1);
  request.answer.echo_only = request.max_tokens == 0;
  request.add_special_tokens = fields.Bool("add_special_tokens").value_or(true);
  ParseTokenLogprobs(fields, limits, &request);
  ParseShared(fields, fields, body, limits, &request);
  ParseExperts(fields, fields, limits, /*by_default=*/true, &request);
  request.answer.sglangs_experts = fields.Bool("return_routed_experts").value_or(false);
  ParseGeneratedFrom(fields, &request);
  ParseWhatRoutersAdd(fields, &request);
  fields.RefuseUnknown();
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

}  // namespace outrider::openai
