// A DeepSeek-style network (V2, V3, R1, Kimi-K2, GLM-4.7-Flash): the target, its MTP modules, its
// head, which the modules share. What heads and modules read are outputs after a norm. Some layers
// of the target may have linear attention (Kimi-Linear, Ling-3.0). Modules have none, so they leave
// cache entries and no state.
#pragma once

#include "outrider/networks/decoder_network.h"
#include "outrider/networks/deepseek_weights.h"

namespace outrider {

class DeepSeekNetwork : public DecoderNetwork {
 public:
  DeepSeekNetwork(ModelConfig config, DeepSeekWeights weights, const NetworkOptions& options);

  const TokenTable& embedding() const override { return weights_.embedding; }

 private:
  void RunTarget(const Context& context, const StepInputs& inputs, KvCache& cache, Tensor hidden,
                 const TargetTaps& taps) override;
  void RunMtp(const Context& context, const ModulePass& pass, KvCache& cache) override;
  HeadRows RunBeforeHead(const Context& context, int32_t module, Tensor hidden,
                         std::span<const int32_t> rows) override;

  NormOut NormTo(const float* weight, Tensor out) const;

  DeepSeekWeights weights_;
};

}  // namespace outrider
