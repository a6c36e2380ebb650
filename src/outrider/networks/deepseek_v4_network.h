// DeepSeek-V4: layers over several residual streams, with attention over a window and over
// compressed entries, and experts in every layer. What heads and the MTP module read are the
// streams behind the last layer, side by side. A tap is the mean of a layer's streams.
#pragma once

#include <memory>
#include <vector>

#include "outrider/networks/deepseek_v4_layers.h"
#include "outrider/networks/deepseek_v4_weights.h"
#include "outrider/networks/network.h"

namespace outrider {

class DeepSeekV4Network : public Network {
 public:
  /// The only path of the attention plan must be kListed: rows of all layers read lists.
  DeepSeekV4Network(ModelConfig config, DeepSeekV4Weights weights, const NetworkOptions& options);

  int32_t output_width() const override { return static_cast<int32_t>(layers_.width()); }
  const TokenTable& embedding() const override { return weights_.embedding; }

  std::unique_ptr<BlockDraftModel> MakeBlockDraftModel() override;

  /// For a drafter that runs layers of its own.
  const DeepSeekV4Weights& weights() const { return weights_; }

 private:
  void RunTarget(const Context& context, const StepInputs& inputs, KvCache& cache, Tensor hidden,
                 const TargetTaps& taps) override;
  void RunMtp(const Context& context, const ModulePass& pass, KvCache& cache) override;
  HeadRows RunBeforeHead(const Context& context, int32_t module, Tensor hidden,
                         std::span<const int32_t> rows) override;

  DeepSeekV4Weights weights_;
  DeepSeekV4Layers layers_;  // the target's, then one per MTP module
  // What RunBeforeHead fills, kept to reuse memory.
  std::vector<int32_t> head_rows_;
  RowCopies copies_;
};

}  // namespace outrider
