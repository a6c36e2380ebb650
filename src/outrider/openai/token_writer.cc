#include "outrider/openai/token_writer.h"

#include <fmt/format.h>

#include <utility>

#include "outrider/openai/logprobs_json.h"

namespace outrider::openai {

TokenWriter::TokenWriter(AnswerInfo info, const PromptEncoder& encoder)
    : ChoicesWriter(std::move(info), encoder, {"generation", "generation.chunk"}) {}

std::string TokenWriter::WholeChoice(size_t index, const OutputDelta& whole) {
  const std::string reason =
      whole.finish_reason ? fmt::format("\"{}\"", FinishReasonName(*whole.finish_reason)) : "null";
  std::string out = fmt::format(
      R"({{"index":{},"token_ids":{},"logprobs":{},"finish_reason":{},"stop_reason":{})", index,
      IdsJson(whole.token_ids),
      options().logprobs ? TokenIdLogprobsJson(whole.logprobs) : std::string("null"), reason,
      StopReasonJson(whole));
  if (options().prompt_logprobs) out += R"(,"prompt_logprobs":)" + PromptLogprobsText(index);
  return out + StepsMember(whole) + '}';
}

void TokenWriter::WriteChoice(size_t index, const OutputDelta& delta, std::string* out) {
  if (delta.token_ids.empty() && !delta.finish_reason) return;
  WriteChunk(WholeChoice(index, delta), LastMembers(), out);
}

}  // namespace outrider::openai
