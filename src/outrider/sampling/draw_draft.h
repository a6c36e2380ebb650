// Draws a draft from a drafter's logits.
#pragma once

#include <cstdint>
#include <span>

#include "outrider/sampling/sampler.h"

namespace outrider {

/// The noise of a draft, and where its distribution goes.
struct DraftDraw {
  uint64_t seed = 0;
  int64_t position = 0;
  /// Null: the draft is drawn with the target's own noise. Else with noise of its own, as rejection
  /// sampling needs it, and the distribution that it was drawn from is written here: as long as the
  /// model's vocabulary.
  std::span<float> probs = {};
};

/// The draft that `logits`, of the first tokens, give with these parameters; temperature > 0. It is
/// a token even where numbers have overflowed.
int32_t DrawDraft(Sampler& sampler, const SamplingParams& params, const DraftDraw& draw,
                  std::span<const float> logits);

}  // namespace outrider
