#include "outrider/speculate/draft_sampler.h"

#include <algorithm>
#include <cmath>

#include "outrider/base/arg_max.h"
#include "outrider/base/random.h"

namespace outrider {

int32_t DrawDraft(std::span<const float> logits, float temperature, uint64_t seed, int64_t position,
                  std::span<float> probs) {
  const float max = logits[ArgMax(logits)];
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    probs[i] = std::exp((logits[i] - max) / temperature);
    total += probs[i];
  }
  const double target =
      UniformDouble(seed, static_cast<uint64_t>(position), RandomStream::kDraft) * total;
  double sum = 0;
  size_t token = 0;
  bool drawn = false;
  for (size_t i = 0; i < probs.size(); ++i) {
    sum += probs[i];
    if (!drawn && probs[i] > 0) {
      token = i;
      drawn = sum > target;
    }
    probs[i] = static_cast<float>(probs[i] / total);
  }
  return static_cast<int32_t>(token);
}

void DraftSampler::Sample(MlaModel& model, MatrixView<const float> hidden,
                          std::span<const int32_t> rows, std::span<const size_t> indices,
                          std::span<const DraftRequest> requests, int32_t step,
                          MatrixView<int32_t> drafts) {
  greedy_.clear();
  greedy_rows_.clear();
  const auto num_logits = static_cast<size_t>(vocab_);
  const auto vocab = static_cast<size_t>(model.vocab_size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const DraftRequest& request = requests[indices[i]];
    if (request.draft_probs == nullptr) {
      greedy_.push_back(indices[i]);
      greedy_rows_.push_back(rows[i]);
      continue;
    }
    logits_.resize(num_logits);
    model.Logits(hidden, rows.subspan(i, 1), {logits_.data(), 1, vocab_});
    float* probs = request.draft_probs + static_cast<size_t>(step) * vocab;
    std::fill(probs + num_logits, probs + vocab, 0.0F);
    const auto position = static_cast<int64_t>(request.tokens.size()) + step;
    drafts.row(static_cast<int64_t>(indices[i]))[step] =
        DrawDraft(logits_, request.temperature, request.seed, position, {probs, num_logits});
  }
  tokens_.resize(greedy_rows_.size());
  model.ArgMaxTokens(hidden, greedy_rows_, vocab_, tokens_);
  for (size_t i = 0; i < greedy_.size(); ++i) {
    // A draft is a token even where numbers have overflown.
    drafts.row(static_cast<int64_t>(greedy_[i]))[step] = std::max(tokens_[i], 0);
  }
}

}  // namespace outrider
