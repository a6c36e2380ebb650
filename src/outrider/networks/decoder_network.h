// A network of decoder layers over one residual stream, with MTP modules that are a layer each:
// what the families that are built so share. A family adds its weights and what its heads read.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "outrider/layers/decoder_layer.h"
#include "outrider/layers/rotary.h"
#include "outrider/networks/network.h"

namespace outrider {

/// One MTP module (DeepSeek-V3, arXiv:2412.19437 §2.2), without what its head reads.
struct MtpModule {
  const float* embedding_norm = nullptr;  // enorm [hidden]
  const float* hidden_norm = nullptr;     // hnorm [hidden]
  Weight projection;                      // eh_proj [hidden, 2 * hidden], embedding half first
  DecoderLayer layer;
};

class DecoderNetwork : public Network {
 protected:
  DecoderNetwork(ModelConfig config, NetworkOptions options, int32_t num_modules);

  /// Gives a layer the number of its rotary embedding; once per layer, before the first step.
  void AddRotary(DecoderLayer& layer) { layer.rotary_kind = rotary_.Add(layer.spec.rotary); }

  /// x [rows, hidden] = the residual stream after all layers, then its norm. Fills the taps, and
  /// tells the experts.
  void RunLayers(const Context& context, const TokenTable& embedding,
                 std::span<const DecoderLayer> layers, const StepInputs& inputs, KvCache& cache,
                 const TargetTaps& taps, Tensor x, const NormOut& norm);

  /// x = eh_proj([enorm(embedding) ; hnorm(previous)]), one layer, then the norm of the pass's
  /// outputs. The residual stream of these outputs, in the arena: [outputs' rows, hidden]; it may
  /// have no rows.
  Tensor RunModule(const Context& context, const TokenTable& embedding_table,
                   const MtpModule& module, const ModulePass& pass, KvCache& cache,
                   const NormOut& norm);

 private:
  /// The caches of layer `index`, or of a module behind the layers.
  LayerCaches CachesOf(KvCache& cache, int32_t index) const;

  LayerStep StepOf(const Context& context, const StepInputs& inputs, KvCache& cache) {
    return {inputs, rotary_.Rows(context, inputs.attended()), cache.state()};
  }

  RotaryKinds rotary_;
  std::vector<int32_t> first_caches_;  // by layer, modules included, and behind the last
};

}  // namespace outrider
