#include "outrider/sampling/draw_draft.h"

#include <algorithm>
#include <cmath>

#include "outrider/base/arg_max.h"

namespace outrider {

namespace {

/// Turns logits into probabilities.
void DraftSoftmax(std::span<float> row) {
  const float max = row[ArgMax(row)];
  double total = 0;
  for (float& x : row) {
    x = std::exp(x - max);
    total += x;
  }
  for (float& x : row) x = static_cast<float>(x / total);
}

}  // namespace

int32_t DrawDraft(Sampler& sampler, const SamplingParams& params, const DraftDraw& draw,
                  std::span<const float> logits) {
  const bool own_noise = !draw.probs.empty();
  const NoiseKey noise{draw.seed, draw.position,
                       own_noise ? RandomStream::kDraft : RandomStream::kTarget};
  const int32_t drawn = sampler.Sample(params, noise, logits);
  const int32_t token = std::max(drawn, 0);
  if (own_noise) {
    std::fill(draw.probs.begin(), draw.probs.end(), 0.0F);
    if (drawn == Sampler::kNoToken) {
      draw.probs[static_cast<size_t>(token)] = 1;
    } else {
      sampler.Process(params, logits, draw.probs.first(logits.size()));
      DraftSoftmax(draw.probs.first(logits.size()));
    }
  }
  return token;
}

}  // namespace outrider
