// Step-3.5-Flash: grouped-query attention with windows in most layers, experts, and MTP modules in
// a chain. What heads and modules read is the residual stream, not normalised; every head has a
// norm of its own, and every module a head.
#pragma once

#include <vector>

#include "outrider/networks/decoder_network.h"
#include "outrider/networks/step3p5_weights.h"

namespace outrider {

class Step3p5Network : public DecoderNetwork {
 public:
  Step3p5Network(ModelConfig config, Step3p5Weights weights, const NetworkOptions& options);

  const TokenTable& embedding() const override { return weights_.embedding; }

 private:
  void RunTarget(const Context& context, const StepInputs& inputs, KvCache& cache, Tensor hidden,
                 const TargetTaps& taps) override;
  void RunMtp(const Context& context, const ModulePass& pass, KvCache& cache) override;
  HeadRows RunBeforeHead(const Context& context, int32_t module, Tensor hidden,
                         std::span<const int32_t> rows) override;

  Step3p5Weights weights_;
  std::vector<int32_t> head_rows_;  // 0, 1, ...: the rows that a head's norm leaves
  RowCopies copies_;
};

}  // namespace outrider
