// Sample and match: each position's token is drawn from the target, and a draft is accepted while
// it equals what was drawn. So drafts change how many tokens a step yields, never which. Other
// rules of acceptance can be chosen (acceptance.h).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "outrider/base/matrix_view.h"
#include "outrider/batch/token_ref.h"
#include "outrider/sampling/acceptance.h"
#include "outrider/sampling/logits_processors.h"
#include "outrider/sampling/logprobs.h"
#include "outrider/sampling/sampler.h"

namespace outrider {

/// In place of a drawn token: one of the logits is NaN, or they have no largest finite number.
inline constexpr int32_t kOverflownRow = -2;

/// One request's part of a verification.
struct VerifyInput {
  const SamplingParams* params = nullptr;
  uint64_t seed = 0;
  TokenRefs tokens;                        // prompt and emitted tokens
  size_t prompt_length = 0;                // of `tokens`
  LogitsProcessors* processors = nullptr;  // null: none are needed
  /// [1 + drafts.size(), MaskWords(vocab)], the tokens that row j may be drawn from
  /// (token_mask.h); without data: all.
  MatrixView<const uint32_t> masks = {};
  MatrixView<const float> logits = {};  // [1 + drafts.size(), vocab]: row j predicts the token at
                                        // position tokens.size() + j, given that drafts 0 .. j-1
                                        // are right
  /// [1 + drafts.size()] what each row gives without drafts, in place of logits: a token, or
  /// Sampler::kNoToken where none is allowed, or kOverflownRow. Of a request that NeedsLogits is
  /// false of.
  std::span<const int32_t> drawn = {};
  LogprobRows drawn_logprobs = {};  // with `drawn`, of requests that ask for log-probabilities
  /// With `drawn`: how many drafts they are, up to the first that they are not; negative: to be
  /// found out.
  int32_t num_accepted = -1;
  TokenRefs drafts = {};
  const float* draft_probs = nullptr;  // [drafts, vocab] what each draft was drawn from; null: the
                                       // drafts were certain
};

/// What one request's logits rows gave: num_accepted drafts, then one more token.
struct VerifiedTokens {
  std::vector<int32_t> tokens;             // emitted; num_accepted + 1 of them, or see dead_end
  std::vector<PositionLogprobs> logprobs;  // one per token, when asked for
  int32_t num_accepted = 0;
  bool dead_end = false;  // no token is allowed to follow: only the accepted drafts are in `tokens`
  bool overflown = false;  // it is a dead end because the model's numbers overflow (kOverflownRow)
};

class Verifier {
 public:
  explicit Verifier(LogprobsMode logprobs_mode = LogprobsMode::kRaw,
                    AcceptanceOptions acceptance = {})
      : logprobs_mode_(logprobs_mode), acceptance_(std::move(acceptance)) {}

  /// Whether the tokens drawn from its rows are the likeliest ones; `processed`: by a mask or by
  /// processors.
  static bool DrawsLikeliest(const SamplingParams& params, bool processed) {
    return !processed && params.temperature == 0;
  }
  /// Whether more counts for such a request than the drawn token of each row and, where they come
  /// `with_logprobs`, its log-probabilities.
  bool NeedsLogits(const SamplingParams& params, bool with_logprobs) const;
  /// How many of a request's drafts a synthetic acceptance accepts, of a request without masks and
  /// processors; negative: acceptance depends on what is drawn. Reads how many drafts there are,
  /// not which.
  int32_t GivenCount(const VerifyInput& input) const;
  LogprobsMode logprobs_mode() const { return logprobs_mode_; }

  /// Replaces `result`.
  void Verify(const VerifyInput& input, VerifiedTokens* result);

 private:
  /// Row j after the mask and the processors.
  std::span<const float> Processed(const VerifyInput& input, int64_t j);
  /// Whether a synthetic acceptance accepts draft `index`, if all before it are.
  bool AcceptsByRate(const VerifyInput& input, size_t index) const;
  Judgement Judge(const VerifyInput& input, size_t index, std::span<const float> row);
  PositionLogprobs Logprobs(const SamplingParams& params, std::span<const float> raw,
                            std::span<const float> processed, int32_t token);

  LogprobsMode logprobs_mode_;
  AcceptanceOptions acceptance_;
  Sampler sampler_;
  RejectionSampler rejection_sampler_;
  std::vector<float> processed_;  // a row after the processors
  std::vector<float> cut_;        // a row after everything
};

}  // namespace outrider
