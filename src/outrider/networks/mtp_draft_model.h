// The MTP modules of a network as a draft model.
#pragma once

#include <memory>
#include <optional>

#include "outrider/networks/draft_model.h"
#include "outrider/networks/network.h"

namespace outrider {

class MtpDraftModel : public DraftModel {
 public:
  /// draft_vocab: drafts are tokens below this number (1 .. the model's vocabulary), and only their
  /// rows of the head are read; unset: all tokens. The network must outlive the draft model.
  explicit MtpDraftModel(Network& network, std::optional<int32_t> draft_vocab = {});

  int32_t width() const override { return network_.output_width(); }
  int32_t vocab_size() const override { return network_.vocab_size(); }
  int32_t num_modules() const override { return network_.num_mtp_modules(); }
  int32_t first_cache_layer() const override {
    return FirstCacheLayer(network_.config(), network_.config().num_hidden_layers());
  }
  Tensor ReadTarget(Tensor target) override { return target; }
  void Forward(const ModulePass& pass, KvCache& cache) override;
  void Draw(const DraftDraws& draws, std::span<TokenRef> tokens) override;

 private:
  Network& network_;
  int32_t draft_vocab_;
  std::unique_ptr<StepSampler> sampler_;
};

}  // namespace outrider
