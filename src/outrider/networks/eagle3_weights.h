// The weights of an EAGLE-3 drafter, and under which names a checkpoint holds them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "outrider/checkpoint/model_config.h"
#include "outrider/layers/decoder_layer.h"
#include "outrider/ops/weight_loader.h"

namespace outrider {

struct Eagle3Weights {
  std::unique_ptr<WeightMemory> memory;  // what all handles point into
  std::optional<TokenTable> embedding;   // absent: the drafter reads the target's
  std::vector<const float*> tap_norms;   // fc_norm, each [target hidden]; may be empty
  Weight fc;                             // [hidden, taps * target hidden]
  const float* hidden_norm = nullptr;    // [hidden]
  const float* final_norm = nullptr;     // [hidden]
  /// Its input_norm is the embedding's; attention reads the embedding and the hidden row.
  DecoderLayer layer;
  Weight head;                  // [draft vocabulary, hidden]
  std::vector<int32_t> tokens;  // the target's, of the head's rows; empty: token i is row i's

  /// Declares everything that lies in the device's memory and checks it, with the other tensors of
  /// the source, and sets what the layer is, whole. Throws Error for what is missing or wrong.
  void Declare(WeightLoader& loader, const ModelConfig& config);
  /// Reads `tokens`. Throws Error for tokens that the target does not have, or twice.
  void ReadTokens(const WeightSource& source, const ModelConfig& config);
};

/// Whether a drafter's checkpoint has an embedding, in place of the target's.
bool HasOwnEmbedding(const WeightSource& source);

}  // namespace outrider
