#include "outrider/openai/token_writer.h"

#include <fmt/format.h>

#include <utility>

#include "outrider/base/json_text.h"
#include "outrider/openai/logprobs_json.h"

namespace outrider::openai {

TokenWriter::TokenWriter(AnswerInfo info, const PromptEncoder& encoder)
    : ChoicesWriter(std::move(info), encoder, {"generation", "generation.chunk"}) {}

std::string TokenWriter::WholeChoice(size_t index, const OutputDelta& whole) {
  const std::string reason =
      whole.finish_reason ? fmt::format("\"{}\"", FinishReasonName(*whole.finish_reason)) : "null";
  const bool is_vllms = options().token_form == TokenForm::kVllm;
  std::string logprobs = "null";
  if (options().logprobs) {
    logprobs =
        is_vllms ? NumberedLogprobsJson(whole.logprobs) : TokenIdLogprobsJson(whole.logprobs);
  }
  std::string out = fmt::format(
      R"({{"index":{},"token_ids":{},"logprobs":{},"finish_reason":{},"stop_reason":{})", index,
      IdsJson(whole.token_ids), logprobs, reason, StopReasonJson(whole));
  if (options().prompt_logprobs && !is_vllms) {
    out += R"(,"prompt_logprobs":)" + PromptLogprobsText(index);
  }
  return out + StepsMember(whole) + '}';
}

// vLLM tells of the prompt beside the choices.
std::string TokenWriter::WholeMembers() {
  if (options().token_form != TokenForm::kVllm) return "";
  return fmt::format(R"(,"request_id":{},"prompt_logprobs":{},"kv_transfer_params":null)",
                     JsonString(info().id.substr(info().id.find('-') + 1)),
                     options().prompt_logprobs ? PromptLogprobsText(0) : std::string("null"));
}

void TokenWriter::WriteChoice(size_t index, const OutputDelta& delta, std::string* out) {
  if (delta.token_ids.empty() && !delta.finish_reason) return;
  WriteChunk(WholeChoice(index, delta), LastMembers(), out);
}

}  // namespace outrider::openai
