#include "outrider/draft/draft_sampler.h"

#include "outrider/ops/tokens_on_device.h"

namespace outrider {

DrawRequest DraftOf(const DraftRequest& request, int32_t step, int32_t max_drafts,
                    int32_t vocab_size) {
  DrawRequest draw;
  draw.place = SlotPlaces(request.slot, max_drafts).draft(step);
  if (request.sampling == nullptr) return draw;
  draw.sampling = request.sampling;
  draw.draw = {.seed = request.seed,
               .position = static_cast<int64_t>(request.tokens.size()) + step};
  if (request.draft_probs == nullptr) return draw;
  const auto vocab = static_cast<size_t>(vocab_size);
  draw.draw.probs = {request.draft_probs + static_cast<size_t>(step) * vocab, vocab};
  return draw;
}

void DraftSampler::Sample(DraftModel& model, int32_t m, Tensor hidden,
                          std::span<const int32_t> rows, std::span<const size_t> indices,
                          std::span<const DraftRequest> requests, int32_t step,
                          MatrixView<TokenRef> drafts) {
  tokens_before_.clear();
  draws_.clear();
  for (const size_t i : indices) {
    const DraftRequest& r = requests[i];
    tokens_before_.push_back(step == 0 ? r.tokens.back()
                                       : drafts.row(static_cast<int64_t>(i))[step - 1]);
    draws_.push_back(DraftOf(r, step, static_cast<int32_t>(drafts.cols), model.vocab_size()));
  }
  tokens_.resize(draws_.size());
  model.Draw({m, hidden, rows, tokens_before_, draws_}, tokens_);
  for (size_t i = 0; i < indices.size(); ++i) {
    drafts.row(static_cast<int64_t>(indices[i]))[step] = tokens_[i];
  }
}

}  // namespace outrider
