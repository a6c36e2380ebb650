// The weights of Step-3.5, and under which names a checkpoint holds them.
#pragma once

#include <memory>
#include <vector>

#include "outrider/checkpoint/model_config.h"
#include "outrider/networks/decoder_network.h"
#include "outrider/ops/weight_loader.h"

namespace outrider {

/// What makes tokens of a residual stream: head(norm(x)).
struct NormedHead {
  const float* norm = nullptr;  // [hidden]
  Weight head;                  // [vocab, hidden]
};

struct Step3p5ModuleWeights : MtpModule {
  NormedHead head;
};

/// Norms are stored as their difference from 1, which is added at load.
struct Step3p5Weights {
  std::unique_ptr<WeightMemory> memory;  // what all handles point into
  TokenTable embedding;
  std::vector<DecoderLayer> layers;
  NormedHead head;
  std::vector<Step3p5ModuleWeights> mtp;

  /// Declares everything but `memory`, with `num_modules` MTP modules.
  void Declare(WeightLoader& loader, const ModelConfig& config, int num_modules);
};

}  // namespace outrider
