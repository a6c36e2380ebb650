// Reads the output of one request as it comes: what its text means, and which of its tokens were
// reasoning.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "outrider/engine/generation.h"
#include "outrider/output/output_parser.h"
#include "outrider/output/output_piece.h"
#include "outrider/text/prompt_encoder.h"
#include "outrider/text/utf8.h"

namespace outrider {

class OutputReader {
 public:
  /// `skip_special_tokens`: the request's text has no special tokens but those that the task keeps.
  /// The references must outlive the reader.
  OutputReader(const OutputTask& task, const PromptEncoder& encoder, bool skip_special_tokens)
      : task_(task), parser_(task), encoder_(encoder), skip_special_tokens_(skip_special_tokens) {}

  /// What became certain with this delta and is wanted; all that is left with the last one.
  std::vector<OutputPiece> Take(const OutputDelta& delta);

  /// Where the reasoning is not shown: puts in the place of a delta's tokens and their logprobs
  /// those that the last Take found to be no reasoning. A token waits until that is certain.
  void HideReasoning(OutputDelta* delta);

  /// Tokens of the reasoning so far, with those of the marks around it.
  int64_t reasoning_tokens() const { return reasoning_tokens_; }

  /// After the last delta: the text ended within a call.
  bool call_cut_off() const { return parser_.call_cut_off(); }

 private:
  struct Token {
    int64_t offset;  // where in the text it begins
    int32_t id;
    std::optional<PositionLogprobs> logprobs = std::nullopt;
  };

  bool IsWanted(const OutputPiece& piece);
  void Locate(const OutputDelta& delta);
  void Sort(Token token, bool is_reasoning);

  const OutputTask& task_;
  OutputParser parser_;
  int32_t num_calls_ = 0;
  const PromptEncoder& encoder_;
  bool skip_special_tokens_;
  std::deque<Token> unsorted_;  // not known to be reasoning or something else
  int64_t text_size_ = 0;
  int64_t sorted_size_ = 0;  // of the text
  int64_t reasoning_tokens_ = 0;
  std::vector<Token> shown_;
  Utf8Stream text_;
};

}  // namespace outrider
