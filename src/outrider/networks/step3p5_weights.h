// The weights of Step-3.5, and under which names a checkpoint holds them.
#pragma once

#include <memory>
#include <string>
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

/// The matrices of grouped-query attention that reads rows of `input` numbers and adds rows of
/// `output`.
void DeclareGqaMatrices(WeightLoader& loader, const GqaSpec& spec, int64_t input, int64_t output,
                        GqaWeights* weights, const std::string& prefix);

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
