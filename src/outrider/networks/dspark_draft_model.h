// The DSpark drafter of a DeepSeek-V4: its stages attend to what main_proj makes of three of the
// target's layers, for the last positions of the window, and to the rows of the block. A draft's
// logits are those of the target's head and a bias of low rank by the token before it.
#pragma once

#include <memory>
#include <vector>

#include "outrider/networks/block_draft_model.h"
#include "outrider/networks/deepseek_v4_layers.h"
#include "outrider/networks/deepseek_v4_network.h"
#include "outrider/ops/block_drafts.h"

namespace outrider {

class DSparkDraftModel : public BlockDraftModel {
 public:
  /// The network, which must have loaded the drafter, must outlive it.
  explicit DSparkDraftModel(DeepSeekV4Network& network);

  std::span<const int32_t> taps() const override { return spec_.taps; }
  int32_t width() const override { return network_.hidden_size(); }
  int32_t vocab_size() const override { return network_.vocab_size(); }
  int32_t num_modules() const override { return 1; }
  int32_t first_cache_layer() const override {
    return FirstCacheLayer(network_.config(), network_.config().num_hidden_layers());
  }
  int32_t block_size() const override { return static_cast<int32_t>(spec_.block_size); }
  int32_t noise_token() const override { return spec_.noise_token; }

  Tensor ReadTarget(Tensor target) override;
  void Forward(const ModulePass& pass, KvCache& cache) override;
  Tensor StartDraws(Tensor hidden, std::span<const int32_t> rows) override;
  void Draw(const DraftDraws& draws, std::span<int32_t> tokens) override;
  std::span<const float> confidences() const override { return confidences_; }
  double busy_seconds() const override { return busy_seconds_; }

 private:
  DeepSeekV4Network& network_;
  const DSparkSpec& spec_;
  const DSparkWeights& weights_;
  DeepSeekV4Layers layers_;  // the stages
  std::unique_ptr<LogitsSampler> sampler_;
  // Kept between calls; they grow.
  std::unique_ptr<RowMemory> main_;    // [rows, hidden], of ReadTarget
  std::unique_ptr<RowMemory> hidden_;  // [rows, hidden], of StartDraws
  std::unique_ptr<RowMemory> logits_;  // [rows, vocab], of StartDraws
  int64_t num_draw_rows_ = 0;
  RowCopies copies_;
  std::vector<int32_t> first_rows_;  // 0, 1, ...
  std::vector<float> confidences_;
  double busy_seconds_ = 0;
};

}  // namespace outrider
