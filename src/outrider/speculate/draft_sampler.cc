#include "outrider/speculate/draft_sampler.h"

#include <algorithm>
#include <cmath>

#include "outrider/base/arg_max.h"

namespace outrider {

namespace {

// Logits are made for so many rows at a time, which bounds their memory.
constexpr size_t kLogitsTile = 64;

/// Turns logits into probabilities.
void Softmax(std::span<float> row) {
  const float max = row[ArgMax(row)];
  double total = 0;
  for (float& x : row) {
    x = std::exp(x - max);
    total += x;
  }
  for (float& x : row) x = static_cast<float>(x / total);
}

}  // namespace

int32_t DrawDraft(Sampler& sampler, const DraftRequest& request, int32_t step,
                  std::span<const float> logits, int32_t vocab) {
  const bool own_noise = request.draft_probs != nullptr;
  const NoiseKey noise{request.seed, static_cast<int64_t>(request.tokens.size()) + step,
                       own_noise ? RandomStream::kDraft : RandomStream::kTarget};
  const int32_t drawn = sampler.Sample(*request.sampling, noise, logits);
  const int32_t token = std::max(drawn, 0);
  if (own_noise) {
    const std::span<float> probs(request.draft_probs + static_cast<int64_t>(step) * vocab,
                                 static_cast<size_t>(vocab));
    std::fill(probs.begin(), probs.end(), 0.0F);
    if (drawn == Sampler::kNoToken) {
      probs[static_cast<size_t>(token)] = 1;
    } else {
      sampler.Process(*request.sampling, logits, probs.first(logits.size()));
      Softmax(probs.first(logits.size()));
    }
  }
  return token;
}

void DraftSampler::Sample(Network& model, int32_t module, MatrixView<const float> hidden,
                          std::span<const int32_t> rows, std::span<const size_t> indices,
                          std::span<const DraftRequest> requests, int32_t step,
                          MatrixView<int32_t> drafts) {
  for (Group* group : {&likeliest_, &drawn_}) {
    group->indices.clear();
    group->rows.clear();
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    Group& group = requests[indices[i]].sampling == nullptr ? likeliest_ : drawn_;
    group.indices.push_back(indices[i]);
    group.rows.push_back(rows[i]);
  }
  likeliest_.tokens.resize(likeliest_.rows.size());
  model.ArgMaxTokens(module, hidden, likeliest_.rows, vocab_, likeliest_.tokens);
  // A draft is a token even where numbers have overflowed.
  for (int32_t& token : likeliest_.tokens) token = std::max(token, 0);
  drawn_.tokens.resize(drawn_.rows.size());
  Draw(model, module, hidden, requests, step);
  for (const Group* group : {&likeliest_, &drawn_}) {
    for (size_t i = 0; i < group->indices.size(); ++i) {
      drafts.row(static_cast<int64_t>(group->indices[i]))[step] = group->tokens[i];
    }
  }
}

void DraftSampler::Draw(Network& model, int32_t module, MatrixView<const float> hidden,
                        std::span<const DraftRequest> requests, int32_t step) {
  samplers_.resize(static_cast<size_t>(model.device().pool->size()));
  for (size_t first = 0; first < drawn_.rows.size(); first += kLogitsTile) {
    const size_t count = std::min(kLogitsTile, drawn_.rows.size() - first);
    logits_.resize(count * static_cast<size_t>(vocab_));
    const MatrixView<float> logits(logits_.data(), static_cast<int64_t>(count), vocab_);
    model.Logits(module, hidden, std::span(drawn_.rows).subspan(first, count), logits);
    model.device().pool->ParallelFor(logits.rows, [&](int64_t row, int thread) {
      const size_t i = first + static_cast<size_t>(row);
      drawn_.tokens[i] =
          DrawDraft(samplers_[static_cast<size_t>(thread)], requests[drawn_.indices[i]], step,
                    {logits.row(row), static_cast<size_t>(vocab_)}, model.vocab_size());
    });
  }
}

}  // namespace outrider
