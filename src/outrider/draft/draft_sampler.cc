#include "outrider/draft/draft_sampler.h"

#include "outrider/ops/tokens_on_device.h"

namespace outrider {

void DraftSampler::Sample(DraftModel& model, int32_t m, Tensor hidden,
                          std::span<const int32_t> rows, std::span<const size_t> indices,
                          std::span<const DraftRequest> requests, int32_t step,
                          MatrixView<int32_t> drafts) {
  tokens_before_.clear();
  draws_.clear();
  for (const size_t i : indices) {
    const DraftRequest& r = requests[i];
    tokens_before_.push_back(step == 0 ? r.tokens.back()
                                       : drafts.row(static_cast<int64_t>(i))[step - 1]);
    DrawRequest& draw = draws_.emplace_back();
    draw.place = SlotPlaces(r.slot, static_cast<int32_t>(drafts.cols)).draft(step);
    if (r.sampling == nullptr) continue;
    draw.sampling = r.sampling;
    draw.draw = {.seed = r.seed, .position = static_cast<int64_t>(r.tokens.size()) + step};
    if (r.draft_probs == nullptr) continue;
    const auto vocab = static_cast<size_t>(model.vocab_size());
    draw.draw.probs = {r.draft_probs + static_cast<size_t>(step) * vocab, vocab};
  }
  tokens_.resize(draws_.size());
  model.Draw({m, hidden, rows, tokens_before_, draws_}, tokens_);
  for (size_t i = 0; i < indices.size(); ++i) {
    drafts.row(static_cast<int64_t>(indices[i]))[step] = tokens_[i];
  }
}

}  // namespace outrider
