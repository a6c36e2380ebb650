// Request bodies of every endpoint: any bytes give a request within its documented ranges or an
// Error of one line.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/openai/api_error.h"
#include "outrider/openai/parse_tokenize.h"
#include "outrider/openai/request.h"

namespace {

using outrider::openai::ParseGenerateRequest;
using outrider::openai::RequestLimits;
using outrider::openai::TokenForm;
using outrider::openai::TokenRequest;

void Check(const TokenRequest& request, const RequestLimits& limits) {
  const outrider::SamplingParams& sampling = request.sampling;
  OUTRIDER_CHECK(sampling.temperature >= 0 && std::isfinite(sampling.temperature));
  OUTRIDER_CHECK(sampling.top_p > 0 && sampling.top_p <= 1);
  OUTRIDER_CHECK(sampling.min_p >= 0 && sampling.min_p <= 1);
  OUTRIDER_CHECK(sampling.top_k >= 0);
  OUTRIDER_CHECK(!request.max_tokens || *request.max_tokens >= (request.answer.echo ? 0 : 1));
  OUTRIDER_CHECK(request.answer.logprobs.value_or(0) <= limits.max_logprobs);
  OUTRIDER_CHECK(request.n >= 1 && request.n <= 128);
  OUTRIDER_CHECK(sampling.min_tokens >= 0);
  if (sampling.max_tokens >= sampling.min_tokens) {
    sampling.Validate(limits.vocab_size, limits.max_logprobs);  // the engine takes it
  }
  for (const int32_t id : sampling.stop_token_ids) {
    OUTRIDER_CHECK(id >= 0 && id < limits.vocab_size);
  }
  if (request.grammar) {
    OUTRIDER_CHECK(!request.grammar_field.empty());
    if (request.grammar->kind == outrider::GrammarKind::kJsonSchema) {
      OUTRIDER_CHECK(nlohmann::json::accept(request.grammar->text), "{}", request.grammar->text);
    }
  }
  OUTRIDER_CHECK(request.answer.chat ? request.prompts.empty() : !request.prompts.empty());
}

template <typename Parse>
void Try(const Parse& parse, std::string_view body, const RequestLimits& limits) {
  try {
    Check(parse(body, limits), limits);
  } catch (const outrider::Error& error) {
    const std::string message = error.what();
    OUTRIDER_CHECK(!message.empty() && message.size() < 1000, "{}", message);
    // Bodies of errors must be JSON whatever was in the request.
    OUTRIDER_CHECK(outrider::openai::ErrorJson(outrider::openai::FromError(error)).size() > 10);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  RequestLimits limits;
  limits.vocab_size = 1000;
  limits.max_model_len = 4096;
  Try(outrider::openai::ParseCompletionRequest, body, limits);
  Try(outrider::openai::ParseChatRequest, body, limits);
  Try(outrider::openai::ParseResponseRequest, body, limits);
  Try([](std::string_view text,
         const RequestLimits& of) { return outrider::openai::ParseMessageRequest(text, of); },
      body, limits);
  for (const TokenForm form : {TokenForm::kOutrider, TokenForm::kVllm, TokenForm::kSglang}) {
    Try([form](std::string_view text,
               const RequestLimits& of) { return ParseGenerateRequest(text, of, form); },
        body, limits);
  }
  // These are read to the end or refused; there is nothing else to hold.
  for (const auto& parse : std::vector<std::function<void()>>{
           [&] { outrider::openai::ParseTokenizeRequest(body); },
           [&] { outrider::openai::ParseDetokenizeRequest(body, limits); },
           [&] { outrider::openai::ParseAbortRequest(body); }}) {
    try {
      parse();
    } catch (const outrider::Error& error) {
      OUTRIDER_CHECK(std::string_view(error.what()).size() < 1000);
    }
  }
  return 0;
}
