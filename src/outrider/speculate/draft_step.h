// What a step did, for what learns from steps how many tokens to draft.
#pragma once

#include <cstdint>
#include <span>

namespace outrider {

struct DraftStep {
  double seconds = 0;        // of all but drafting
  double draft_seconds = 0;  // of `depth` modules, or of one that ran so often
  int32_t depth = 0;         // drafts that were asked for
  int64_t module_rows = 0;   // over all modules
  int32_t drafting = 0;      // requests that modules drafted for
  int32_t prompt_rows = 0;   // rows that are not part of a verification
  int32_t verify_rows = 0;
  int32_t tokens = 0;  // that the verification gave
  // Of the requests that ended in it: prompt rows that were computed for them, tokens they got.
  int64_t ended_prompt_rows = 0;
  int64_t ended_tokens = 0;
  /// [k] Requests whose draft i was reached, those before it being right, and those where it gained
  /// a token.
  std::span<const int32_t> tried = {};
  std::span<const int32_t> accepted = {};
};

}  // namespace outrider
