// The weights of a network that mixes linear and latent attention; checkpoint/hybrid_names.h says
// under which names a checkpoint holds them.
#pragma once

#include <memory>
#include <vector>

#include "outrider/checkpoint/model_config.h"
#include "outrider/networks/decoder_network.h"
#include "outrider/networks/deepseek_weights.h"
#include "outrider/ops/weight_loader.h"

namespace outrider {

struct HybridWeights {
  std::unique_ptr<WeightMemory> memory;  // what all handles point into
  TokenTable embedding;
  std::vector<DecoderLayer> layers;
  const float* final_norm = nullptr;
  Weight head;  // lm_head [vocab, hidden]
  std::vector<MtpWeights> mtp;

  /// Declares everything but `memory`, with `num_modules` MTP modules.
  void Declare(WeightLoader& loader, const ModelConfig& config, int num_modules);
};

}  // namespace outrider
