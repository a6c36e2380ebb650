// A network that mixes Kimi Delta Attention with latent attention: Kimi-Linear, Ling-3.0. What its
// head and its MTP modules read is normalised. The modules have latent attention, so they leave
// cache entries and no state.
#pragma once

#include "outrider/networks/decoder_network.h"
#include "outrider/networks/hybrid_weights.h"

namespace outrider {

class HybridNetwork : public DecoderNetwork {
 public:
  HybridNetwork(ModelConfig config, HybridWeights weights, const NetworkOptions& options);

  const TokenTable& embedding() const override { return weights_.embedding; }

 private:
  void RunTarget(const StepInputs& inputs, KvCache& cache, Tensor hidden,
                 const TargetTaps& taps) override;
  void RunMtp(const ModulePass& pass, KvCache& cache) override;
  HeadRows RunBeforeHead(const Context& context, int32_t module, Tensor hidden,
                         std::span<const int32_t> rows) override;

  NormOut NormTo(const float* weight, Tensor out) const;

  HybridWeights weights_;
};

}  // namespace outrider
