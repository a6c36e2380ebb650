// The weights of a network that mixes linear and latent attention; checkpoint/hybrid_names.h says
// under which names a checkpoint holds them.
#pragma once

#include "outrider/checkpoint/model_config.h"
#include "outrider/networks/deepseek_weights.h"
#include "outrider/ops/weight_loader.h"

namespace outrider {

struct HybridWeights : DeepSeekWeights {
  /// Declares everything but `memory`, with `num_modules` MTP modules.
  void Declare(WeightLoader& loader, const ModelConfig& config, int num_modules);
};

}  // namespace outrider
