// The weights of DeepSeek-V4, and under which names a checkpoint holds them.
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

/// What a head reads of the streams: their contraction, normalised.
struct DeepSeekV4HeadWeights {
  HyperWeights streams;         // hc_head
  const float* norm = nullptr;  // [hidden]
};

struct DeepSeekV4MtpWeights {
  const float* embedding_norm = nullptr;  // enorm [hidden]
  const float* hidden_norm = nullptr;     // hnorm [hidden], of every stream
  Weight embedding_projection;            // e_proj [hidden, hidden]
  Weight hidden_projection;               // h_proj [hidden, hidden], of every stream
  DeepSeekV4LayerWeights layer;
  DeepSeekV4HeadWeights before_head;
};

/// A DSpark drafter, which shares embedding and head with the target.
struct DSparkWeights {
  Weight projection;            // main_proj [hidden, taps * hidden]
  const float* norm = nullptr;  // main_norm [hidden]
  std::vector<DeepSeekV4LayerWeights> stages;
  DeepSeekV4HeadWeights before_head;
  TokenTable markov;  // markov_w1 [vocab, rank]: of the token before a draft
  Weight bias;        // markov_w2 [vocab, rank]: what that row adds to the draft's logits
  Weight confidence;  // confidence_head [1, hidden + rank]
};

struct DeepSeekV4Weights {
  std::unique_ptr<WeightMemory> memory;  // what all handles point into
  TokenTable embedding;
  std::vector<DeepSeekV4LayerWeights> layers;
  DeepSeekV4HeadWeights before_head;
  Weight head;  // [vocab, hidden], of MTP modules too
  std::vector<DeepSeekV4MtpWeights> mtp;
  DSparkWeights dspark;  // without stages if it was not declared

  /// Declares everything but `memory`, with `num_modules` MTP modules. Where the config has a
  /// DSpark drafter, num_modules > 0 declares that drafter instead.
  void Declare(WeightLoader& loader, const ModelConfig& config, int num_modules);
};

}  // namespace outrider
