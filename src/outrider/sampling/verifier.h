// Sample and match: each position's token is drawn from the target, and a draft is accepted while
// it equals what was drawn. So drafts change how many tokens a step yields, never which.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "outrider/base/matrix_view.h"
#include "outrider/sampling/logprobs.h"
#include "outrider/sampling/sampler.h"

namespace outrider {

/// What one request's logits rows gave. num_accepted drafts, then one more token.
struct VerifiedTokens {
  std::vector<int32_t> tokens;             // num_accepted + 1 emitted tokens
  std::vector<PositionLogprobs> logprobs;  // one per token, when asked for
  int32_t num_accepted = 0;
};

class Verifier {
 public:
  /// logits [1 + drafts.size(), vocab]: row j predicts the token at first_position + j given that
  /// drafts 0 .. j-1 were right. Replaces `result`.
  void Verify(const SamplingParams& params, uint64_t seed, int64_t first_position,
              MatrixView<const float> logits, std::span<const int32_t> drafts,
              VerifiedTokens* result);

 private:
  Sampler sampler_;
};

}  // namespace outrider
