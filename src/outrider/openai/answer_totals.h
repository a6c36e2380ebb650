// What the choices of an answer add up to: tokens for `usage`, acceptance for `metrics`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "outrider/engine/generation.h"

namespace outrider::openai {

class AnswerTotals {
 public:
  /// Each prompt has `n` choices.
  AnswerTotals(const std::vector<std::vector<int32_t>>& prompts, int32_t n);

  void Add(size_t choice, const OutputDelta& delta);

  bool all_finished() const { return num_finished_ == choices_.size(); }

  /// What was counted so far. A prompt counts once, however many choices answer it.
  int64_t prompt_tokens() const { return prompt_tokens_; }
  int64_t completion_tokens() const;
  int64_t cached_tokens() const;

  /// {"prompt_tokens",...} as completions and chat completions have it; `details` are further
  /// members of the object, each with a comma before it.
  std::string UsageJson(const std::string& details = "") const;
  /// {"speculative_decoding":{...}} with vLLM's fields; `per_step`: what each step drafted and
  /// accepted as well, if the deltas told.
  std::string MetricsJson(bool per_step) const;

 private:
  struct Choice {
    int64_t completion_tokens = 0;
    RequestStats stats;  // of the last delta
    // The steps that had drafts, when the deltas tell.
    std::vector<int32_t> per_step_drafted;
    std::vector<int32_t> per_step_accepted;
  };

  std::string PerStepMembers() const;

  int64_t prompt_tokens_ = 0;
  size_t n_;
  std::vector<Choice> choices_;
  size_t num_finished_ = 0;
};

}  // namespace outrider::openai
