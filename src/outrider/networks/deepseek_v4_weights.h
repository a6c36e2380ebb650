// The weights of DeepSeek-V4's target, and under which names a checkpoint holds them.
#pragma once

#include <memory>
#include <vector>

#include "outrider/checkpoint/model_config.h"
#include "outrider/layers/compressed_attention.h"
#include "outrider/layers/hyper_connection.h"
#include "outrider/layers/mlp.h"
#include "outrider/ops/weight_loader.h"

namespace outrider {

struct DeepSeekV4LayerWeights {
  HyperWeights attention_streams;         // hc_attn
  const float* attention_norm = nullptr;  // [hidden]
  CompressedWeights attention;
  HyperWeights mlp_streams;         // hc_ffn
  const float* mlp_norm = nullptr;  // [hidden]
  MoeWeights mlp;
};

struct DeepSeekV4Weights {
  std::unique_ptr<WeightMemory> memory;  // what all handles point into
  TokenTable embedding;
  std::vector<DeepSeekV4LayerWeights> layers;
  HyperWeights head_streams;    // hc_head
  const float* norm = nullptr;  // [hidden]
  Weight head;                  // [vocab, hidden]

  /// Declares everything but `memory`. MTP modules cannot be run yet: num_modules is 0.
  void Declare(WeightLoader& loader, const ModelConfig& config, int num_modules);
};

}  // namespace outrider
