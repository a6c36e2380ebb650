#include "outrider/networks/hybrid_network.h"

#include <utility>

#include "outrider/base/error.h"

namespace outrider {

HybridNetwork::HybridNetwork(ModelConfig config, HybridWeights weights,
                             const NetworkOptions& options)
    : DecoderNetwork(std::move(config), options, /*num_modules=*/0), weights_(std::move(weights)) {
  int32_t state_heads = 0;
  for (DecoderLayer& layer : weights_.layers) {
    AddRotary(layer);
    const auto* kda = std::get_if<KdaSpec>(&layer.spec.attention);
    if (kda == nullptr) continue;
    layer.first_state_head = state_heads;
    state_heads += static_cast<int32_t>(kda->heads);
  }
}

void HybridNetwork::RunTarget(const StepInputs& inputs, KvCache& cache, Tensor hidden,
                              const TargetTaps& taps) {
  const Context context = MakeContext();
  const Tensor x = context.Rows(inputs.num_rows(), config().hidden_size);
  RunLayers(
      context, weights_.embedding, weights_.layers, inputs, cache, taps, x,
      {weights_.final_norm, static_cast<float>(config().rms_norm_eps), hidden.Rows(0, x.rows)});
}

void HybridNetwork::RunMtp(const ModulePass& /*pass*/, KvCache& /*cache*/) {
  OUTRIDER_CHECK(false, "no MTP modules are loaded");
}

HeadRows HybridNetwork::RunBeforeHead(const Context& /*context*/, int32_t /*module*/, Tensor hidden,
                                      std::span<const int32_t> rows) {
  return {weights_.head, hidden, rows};
}

}  // namespace outrider
