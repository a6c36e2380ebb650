#include "outrider/output/output_reader.h"

#include <algorithm>
#include <string>
#include <utility>

namespace outrider {

bool OutputReader::IsWanted(const OutputPiece& piece) {
  switch (piece.kind) {
    case OutputPiece::Kind::kReasoning:
      return task_.show_reasoning;
    case OutputPiece::Kind::kToolCall:
      ++num_calls_;
      [[fallthrough]];
    case OutputPiece::Kind::kArguments:
      return num_calls_ == 1 || !task_.one_call;
    case OutputPiece::Kind::kContent:
      return true;
  }
  return true;
}

// Makes the text as the engine does from tokens, to know where each stands.
void OutputReader::Locate(const OutputDelta& delta) {
  for (size_t i = 0; i < delta.token_ids.size(); ++i) {
    const int32_t id = delta.token_ids[i];
    Token& token = unsorted_.emplace_back(Token{text_size_, id});
    if (!task_.show_reasoning && i < delta.logprobs.size()) token.logprobs = delta.logprobs[i];
    if (parser_.reasoning_over()) continue;
    const auto& kept = task_.kept_special_tokens;
    if (skip_special_tokens_ && encoder_.IsSpecial(id) &&
        std::find(kept.begin(), kept.end(), id) == kept.end()) {
      continue;
    }
    std::string text;
    text_.Push(encoder_.TokenBytes(id), &text);
    text_size_ += static_cast<int64_t>(text.size());
  }
}

void OutputReader::Sort(Token token, bool is_reasoning) {
  if (is_reasoning) {
    ++reasoning_tokens_;
  } else if (!task_.show_reasoning) {
    shown_.push_back(std::move(token));
  }
}

std::vector<OutputPiece> OutputReader::Take(const OutputDelta& delta) {
  using TextEnd = OutputParser::TextEnd;
  Locate(delta);
  std::vector<OutputPiece> pieces;
  parser_.Push(delta.text, &pieces);
  if (delta.finish_reason) {
    const bool by_model = *delta.finish_reason == FinishReason::kStop;
    parser_.Finish(by_model ? TextEnd::kByModel : TextEnd::kCutOff, &pieces);
  }
  const auto sort_first = [this](bool is_reasoning) {
    Sort(std::move(unsorted_.front()), is_reasoning);
    unsorted_.pop_front();
  };
  for (const OutputRun& run : parser_.TakeRuns()) {
    sorted_size_ += static_cast<int64_t>(run.bytes);
    while (!unsorted_.empty() && unsorted_.front().offset < sorted_size_) {
      sort_first(run.part == OutputRun::Part::kReasoning);
    }
  }
  // Tokens that end a text stand behind it.
  while (!unsorted_.empty() && (delta.finish_reason || parser_.reasoning_over())) sort_first(false);
  std::erase_if(pieces, [this](const OutputPiece& piece) { return !IsWanted(piece); });
  return pieces;
}

void OutputReader::HideReasoning(OutputDelta* delta) {
  delta->token_ids.clear();
  delta->logprobs.clear();
  for (Token& token : std::exchange(shown_, {})) {
    delta->token_ids.push_back(token.id);
    if (token.logprobs) delta->logprobs.push_back(std::move(*token.logprobs));
  }
}

}  // namespace outrider
