// The weights of a whole network, and under which names a checkpoint holds them.
#pragma once

#include <cstdint>
#include <vector>

#include "outrider/attention/mla_weights.h"
#include "outrider/checkpoint/model_config.h"
#include "outrider/model/weight_loader.h"

namespace outrider {

/// A gated MLP: down(silu(gate x) * up x).
struct MlpWeights {
  PackedMatrix gate_up;  // [2 * width, hidden], gate first
  PackedMatrix down;     // [hidden, width]
};

struct LayerWeights {
  const float* input_norm = nullptr;  // [hidden]
  MlaWeights attention;
  const float* post_attention_norm = nullptr;  // [hidden]
  bool is_moe = false;
  MlpWeights mlp;                      // the dense MLP, or the shared experts of an MoE layer
  PackedMatrix router;                 // [experts, hidden]
  const float* router_bias = nullptr;  // [experts], kNoAuxTc only
  std::vector<MlpWeights> experts;
};

/// One MTP module (DeepSeek-V3, arXiv:2412.19437 §2.2).
struct MtpWeights {
  const float* embedding_norm = nullptr;  // enorm [hidden]
  const float* hidden_norm = nullptr;     // hnorm [hidden]
  PackedMatrix projection;                // eh_proj [hidden, 2 * hidden], embedding half first
  LayerWeights layer;
  const float* output_norm = nullptr;  // shared_head.norm [hidden]
};

struct ModelWeights {
  Buffer memory;  // what all views point into
  EmbeddingTable embedding;
  std::vector<LayerWeights> layers;
  const float* final_norm = nullptr;
  PackedMatrix head;  // lm_head [vocab, hidden]
  std::vector<MtpWeights> mtp;
  WeightSizes target_sizes;
  WeightSizes mtp_sizes;
};

/// Sizes of the weights without reading their values: fills target_sizes and mtp_sizes only.
/// Throws the same errors as LoadModelWeights.
ModelWeights MeasureModelWeights(const ModelConfig& config, int num_mtp_modules,
                                 const WeightSource& source, WeightForm form);

/// Reads and packs everything. Throws Error that lists every tensor that is missing or wrong.
ModelWeights LoadModelWeights(const ModelConfig& config, int num_mtp_modules,
                              const WeightSource& source, WeightForm form, ThreadPool& pool,
                              const WeightLoader::Progress& progress);

}  // namespace outrider
