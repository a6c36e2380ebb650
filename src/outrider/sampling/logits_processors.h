// What a request's sampling fields do to a row of logits before a token is drawn from it: masks,
// bias and penalties. A row is processed with the tokens that would precede it, drafts included, so
// a verify row gets what the same position gets without speculation.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "outrider/sampling/sampling_params.h"
#include "outrider/sampling/token_counts.h"

namespace outrider {

/// The tokens before the one that a row predicts.
struct TokenHistory {
  std::span<const int32_t> tokens;  // the prompt, then what was emitted
  size_t prompt_length = 0;
  std::span<const int32_t> drafts;  // then guesses, taken as right

  size_t num_output() const { return tokens.size() - prompt_length + drafts.size(); }

  /// The output token `back` places before the predicted one, back in 1 .. num_output().
  int32_t FromEnd(size_t back) const {
    return back <= drafts.size() ? drafts[drafts.size() - back]
                                 : tokens[tokens.size() - (back - drafts.size())];
  }
};

/// The processors of one request.
class LogitsProcessors {
 public:
  /// Whether a request with these fields has any; without, its rows are used as they are.
  static bool Needed(const SamplingParams& params);

  /// `params` must be valid. `eos_token_ids` and the stop ids are what min_tokens forbids.
  LogitsProcessors(const SamplingParams& params, std::span<const int32_t> prompt,
                   std::span<const int32_t> eos_token_ids, int32_t vocab_size);

  /// Changes a row in place, in this order:
  /// - forbidden tokens get -infinity: those outside allowed_token_ids, the last token of a bad
  ///   word whose other tokens end the output, and what ends the request while fewer than
  ///   min_tokens are out;
  /// - logit_bias is added;
  /// - x > 0 ? x / r : x * r for tokens of prompt or output, r the repetition penalty, then
  ///   - frequency_penalty * count - presence_penalty for tokens of the output (vLLM's
  ///   definitions).
  /// Calls for one request may repeat or skip rows; its emitted tokens may only grow between them.
  void Apply(const TokenHistory& history, std::span<float> logits);

  // For a device that changes rows itself.

  /// Whether some tokens may be forbidden in rows after `history` or later drafts.
  bool MayForbid(const TokenHistory& history) const;
  /// Clears the bits of forbidden tokens (token_mask.h).
  void Forbid(const TokenHistory& history, std::span<uint32_t> mask) const;
  std::span<const TokenBias> biases() const { return bias_; }
  bool penalises() const { return counts_.has_value(); }
  /// Tokens that a penalty changes in a row after `history`, which has no drafts.
  std::span<const TokenCounts::Entry> Counts(const TokenHistory& history);

 private:
  /// forbid(first, end): tokens first .. end - 1 of `vocab_size`.
  template <typename ForbidRange>
  void ForbidTokens(const TokenHistory& history, int32_t vocab_size, ForbidRange forbid) const;
  void Count(const TokenHistory& history);
  void Penalise(const TokenHistory& history, std::span<float> logits);

  std::optional<std::vector<int32_t>> allowed_;  // sorted
  std::vector<std::vector<int32_t>> bad_words_;
  size_t min_tokens_;
  std::vector<int32_t> stops_;  // tokens that end the request
  std::vector<TokenBias> bias_;
  float repetition_penalty_;
  float presence_penalty_;
  float frequency_penalty_;
  std::optional<TokenCounts> counts_;  // of the first num_counted_ emitted tokens
  size_t num_counted_ = 0;
};

}  // namespace outrider
