// DeepSeek-V4's target: layers over several residual streams, with attention over a window and over
// compressed entries, and experts in every layer.
#pragma once

#include <vector>

#include "outrider/layers/rotary.h"
#include "outrider/networks/deepseek_v4_weights.h"
#include "outrider/networks/network.h"

namespace outrider {

class DeepSeekV4Network : public Network {
 public:
  /// The attention plan's form of the cache must be kHeads: all rows take one path.
  DeepSeekV4Network(ModelConfig config, DeepSeekV4Weights weights, const NetworkOptions& options);

 private:
  /// Of a layer, in `rotary_`.
  struct RotaryNumbers {
    int32_t forward = 0;
    int32_t back = 0;
  };
  /// What all layers get of a step.
  struct Step {
    const StepInputs& inputs;
    KvCache& cache;
    std::span<const Rotary> rotary;  // by kind
  };

  void RunTarget(const StepInputs& inputs, KvCache& cache, Tensor hidden,
                 std::span<const LayerTap> taps) override;
  void RunMtp(const ModulePass& pass, KvCache& cache) override;
  HeadRows RunBeforeHead(const Context& context, int32_t module, Tensor hidden,
                         std::span<const int32_t> rows) override;
  void RunLayer(const Context& context, size_t index, const Step& step, Tensor streams) const;
  void RunAttention(const Context& context, size_t index, const Step& step, Tensor x,
                    Tensor y) const;

  DeepSeekV4Weights weights_;
  HyperShape streams_;
  RotaryKinds rotary_;
  std::vector<RotaryNumbers> rotary_numbers_;  // by layer
  std::vector<int32_t> first_cache_layers_;    // [layers + 1]
  std::vector<float> ones_;                    // [head_dim]
};

}  // namespace outrider
