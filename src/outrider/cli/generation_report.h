// What `outrider generate` prints about a finished request: one line of figures, or one JSON
// object.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "outrider/engine/generation.h"

namespace outrider::cli {

/// The text of one token, for people; empty where there is no tokenizer.
using TokenText = std::function<std::string(int32_t token_id)>;

/// Tokens per second while decoding: those after the first, over the time since it. 0 when there is
/// no second token.
double DecodeTokensPerSecond(const RequestStats& stats);

/// "12 prompt tokens; 40 tokens in 0.61 s, 70.2 tokens/s; first token after 42 ms; acceptance
/// length 3.61". Without speculation, the last part is missing.
std::string FiguresLine(const OutputDelta& result);

/// Which log-probabilities were asked for.
struct ReportedLogprobs {
  bool tokens = false;
  bool prompt = false;
};

/// An object with text, token_ids, logprobs and prompt_logprobs (if asked for), finish_reason,
/// stop_reason, usage, timings (seconds) and speculation, ending in a newline. The shapes are in
/// docs/cli.md.
std::string GenerationJson(const OutputDelta& result, ReportedLogprobs logprobs,
                           const TokenText& token_text);

}  // namespace outrider::cli
