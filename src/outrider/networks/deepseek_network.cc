#include "outrider/networks/deepseek_network.h"

#include <utility>

namespace outrider {

DeepSeekNetwork::DeepSeekNetwork(ModelConfig config, DeepSeekWeights weights,
                                 const NetworkOptions& options)
    : DecoderNetwork(std::move(config), options, static_cast<int32_t>(weights.mtp.size())),
      weights_(std::move(weights)) {
  int32_t state_heads = 0;
  for (DecoderLayer& layer : weights_.layers) {
    AddRotary(layer);
    const auto* kda = std::get_if<KdaSpec>(&layer.spec.attention);
    if (kda == nullptr) continue;
    layer.first_state_head = state_heads;
    state_heads += static_cast<int32_t>(kda->heads);
  }
  for (MtpWeights& w : weights_.mtp) AddRotary(w.layer);
}

void DeepSeekNetwork::RunTarget(const Context& context, const StepInputs& inputs, KvCache& cache,
                                Tensor hidden, const TargetTaps& taps) {
  const Tensor x = context.Rows(inputs.num_rows(), config().hidden_size);
  RunLayers(context, weights_.embedding, weights_.layers, inputs, cache, taps, x,
            NormTo(weights_.final_norm, hidden.Rows(0, x.rows)));
}

void DeepSeekNetwork::RunMtp(const Context& context, const ModulePass& pass, KvCache& cache) {
  const MtpWeights& w = weights_.mtp[static_cast<size_t>(pass.m)];
  RunModule(context, weights_.embedding, w, pass, cache,
            NormTo(w.output_norm, pass.hidden.Rows(0, pass.outputs.num_rows())));
}

NormOut DeepSeekNetwork::NormTo(const float* weight, Tensor out) const {
  return {weight, static_cast<float>(config().rms_norm_eps), out};
}

HeadRows DeepSeekNetwork::RunBeforeHead(const Context& /*context*/, int32_t /*module*/,
                                        Tensor hidden, std::span<const int32_t> rows) {
  return {weights_.head, hidden, rows};
}

}  // namespace outrider
