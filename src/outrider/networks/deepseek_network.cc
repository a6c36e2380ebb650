#include "outrider/networks/deepseek_network.h"

#include <utility>

namespace outrider {

DeepSeekNetwork::DeepSeekNetwork(ModelConfig config, DeepSeekWeights weights,
                                 const NetworkOptions& options)
    : DecoderNetwork(std::move(config), options, static_cast<int32_t>(weights.mtp.size())),
      weights_(std::move(weights)) {
  for (DecoderLayer& layer : weights_.layers) AddRotary(layer);
  for (MtpWeights& w : weights_.mtp) AddRotary(w.layer);
}

void DeepSeekNetwork::RunTarget(const StepInputs& inputs, KvCache& cache, Tensor hidden,
                                std::span<const LayerTap> taps) {
  const Context context = MakeContext();
  const Tensor x = context.Rows(inputs.num_rows(), config().hidden_size);
  RunLayers(context, weights_.embedding, weights_.layers, inputs, cache, taps, x);
  context.ops.Norm(context, x, weights_.final_norm, static_cast<float>(config().rms_norm_eps),
                   hidden.Rows(0, inputs.num_rows()));
}

void DeepSeekNetwork::RunMtp(const ModulePass& pass, KvCache& cache) {
  const Context context = MakeContext();
  const MtpWeights& w = weights_.mtp[static_cast<size_t>(pass.m)];
  const Tensor x = RunModule(context, weights_.embedding, w, pass, cache);
  if (x.rows == 0) return;
  context.ops.Norm(context, x, w.output_norm, static_cast<float>(config().rms_norm_eps),
                   pass.hidden.Rows(0, x.rows));
}

HeadRows DeepSeekNetwork::RunBeforeHead(const Context& /*context*/, int32_t /*module*/,
                                        Tensor hidden, std::span<const int32_t> rows) {
  return {weights_.head, hidden, rows};
}

}  // namespace outrider
