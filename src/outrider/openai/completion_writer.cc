#include "outrider/openai/completion_writer.h"

#include <fmt/format.h>

#include <optional>
#include <span>
#include <utility>

#include "outrider/base/json_text.h"
#include "outrider/openai/logprobs_json.h"

namespace outrider::openai {

CompletionWriter::CompletionWriter(AnswerInfo info, const PromptEncoder& encoder)
    : ChoicesWriter(std::move(info), encoder, {"text_completion", "text_completion"}),
      choices_(this->info().prompts.size() * static_cast<size_t>(this->info().n)) {}

const EchoedPrompt& CompletionWriter::EchoOf(size_t index) const {
  return info().echoed_prompts[index / static_cast<size_t>(info().n)];
}

// Puts the prompt's text before the first delta's; echo_only leaves nothing else.
void CompletionWriter::Echo(size_t index, OutputDelta* delta) {
  if (options().echo_only) {
    delta->text.clear();
    delta->token_ids.clear();
    delta->steps.clear();
    delta->logprobs.clear();
    if (delta->finish_reason) delta->finish_reason = FinishReason::kLength;
    delta->stop_reason = std::monostate();
  }
  if (!std::exchange(choices_[index].echoed, true)) {
    delta->text.insert(0, EchoOf(index).text);
  }
}

void CompletionWriter::WriteDelta(size_t choice, const OutputDelta& delta, std::string* out) {
  if (!options().echo) return ChoicesWriter::WriteDelta(choice, delta, out);
  OutputDelta echoed = delta;
  Echo(choice, &echoed);
  ChoicesWriter::WriteDelta(choice, echoed, out);
}

std::string CompletionWriter::Body(std::vector<OutputDelta> choices) {
  if (options().echo) {
    for (size_t i = 0; i < choices.size(); ++i) Echo(i, &choices[i]);
  }
  return ChoicesWriter::Body(std::move(choices));
}

std::string CompletionWriter::LogprobsJson(size_t index, const OutputDelta& delta, bool first) {
  const bool echo = options().echo && first;
  if (!options().logprobs || (delta.logprobs.empty() && !echo)) return "null";
  std::optional<int32_t> first_token;
  std::span<const PositionLogprobs> prompt;
  std::vector<int32_t> characters;
  if (echo) {
    first_token = PromptOf(index).front();
    prompt = PromptLogprobsOf(index);
    characters = EchoOf(index).token_characters;
  }
  for (const PositionLogprobs& position : delta.logprobs) {
    characters.push_back(TokenCharacters(position.chosen.token_id, encoder(),
                                         /*skip_special=*/options().skip_special_tokens));
  }
  return CompletionLogprobsJson(first_token, prompt, delta.logprobs, characters, encoder(),
                                &choices_[index].text_offset);
}

std::string CompletionWriter::ChoiceJson(size_t index, const OutputDelta& delta) {
  const bool first = !std::exchange(choices_[index].started, true);
  const std::string reason =
      delta.finish_reason ? fmt::format("\"{}\"", FinishReasonName(*delta.finish_reason)) : "null";
  std::string out = fmt::format(
      R"({{"index":{},"text":{},"logprobs":{},"finish_reason":{},"stop_reason":{})", index,
      JsonString(delta.text), LogprobsJson(index, delta, first), reason, StopReasonJson(delta));
  if (options().return_token_ids) {
    if (first) out += R"(,"prompt_token_ids":)" + IdsJson(PromptOf(index));
    out += R"(,"token_ids":)" + IdsJson(delta.token_ids);
  }
  if (options().prompt_logprobs) out += R"(,"prompt_logprobs":)" + PromptLogprobsText(index);
  return out + LastChoiceMembers(delta) + '}';
}

void CompletionWriter::WriteChoice(size_t index, const OutputDelta& delta, std::string* out) {
  // Tokens can end inside a character or a possible stop string: then there is no text yet.
  if (delta.text.empty() && !TellsTokens(delta)) return;
  WriteChunk(ChoiceJson(index, delta), LastMembers(), out);
}

std::string CompletionWriter::WholeChoice(size_t index, const OutputDelta& whole) {
  return ChoiceJson(index, whole);
}

}  // namespace outrider::openai
