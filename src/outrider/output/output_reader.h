// Reads the output of one request as it comes: what its text means, and how many of its tokens were
// reasoning.
#pragma once

#include <cstdint>
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

  /// Tokens of the reasoning so far, with those of the marker that ends it.
  int64_t reasoning_tokens() const;

 private:
  bool IsWanted(const OutputPiece& piece);

  const OutputTask& task_;
  OutputParser parser_;
  int32_t num_calls_ = 0;
  const PromptEncoder& encoder_;
  bool skip_special_tokens_;
  // Where in the text each token begins, for tokens that may be reasoning.
  std::vector<int64_t> token_offsets_;
  int64_t text_size_ = 0;
  Utf8Stream text_;
};

}  // namespace outrider
