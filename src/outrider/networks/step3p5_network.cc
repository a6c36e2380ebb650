#include "outrider/networks/step3p5_network.h"

#include <utility>

namespace outrider {

Step3p5Network::Step3p5Network(ModelConfig config, Step3p5Weights weights,
                               const NetworkOptions& options)
    : DecoderNetwork(std::move(config), options, static_cast<int32_t>(weights.mtp.size())),
      weights_(std::move(weights)) {
  for (DecoderLayer& layer : weights_.layers) AddRotary(layer);
  for (Step3p5ModuleWeights& w : weights_.mtp) AddRotary(w.layer);
}

void Step3p5Network::RunTarget(const Context& context, const StepInputs& inputs, KvCache& cache,
                               Tensor hidden, const TargetTaps& taps) {
  // What is handed over is the residual stream, rounded where the device's rows are.
  const Tensor out = hidden.Rows(0, inputs.num_rows());
  const bool in_place = out.dtype == DType::kF32;
  const Tensor x = in_place ? out : context.Rows(out.rows, out.cols);
  RunLayers(context, weights_.embedding, weights_.layers, inputs, cache, taps, x, {});
  if (!in_place) context.ops.Copy(context, x, out);
}

void Step3p5Network::RunMtp(const Context& context, const ModulePass& pass, KvCache& cache) {
  const Tensor x = RunModule(context, weights_.embedding, weights_.mtp[static_cast<size_t>(pass.m)],
                             pass, cache, {});
  if (x.rows == 0) return;
  context.ops.Copy(context, x, pass.hidden.Rows(0, x.rows));
}

HeadRows Step3p5Network::RunBeforeHead(const Context& context, int32_t module, Tensor hidden,
                                       std::span<const int32_t> rows) {
  const NormedHead& head =
      module == kTarget ? weights_.head : weights_.mtp[static_cast<size_t>(module)].head;
  const Tensor x = context.Rows(static_cast<int64_t>(rows.size()), hidden.cols);
  head_rows_.clear();
  copies_.clear();
  for (const int32_t row : rows) {
    const auto next = static_cast<int32_t>(head_rows_.size());
    copies_.Add(row, next);
    head_rows_.push_back(next);
  }
  context.ops.CopyRows(context, hidden, x, copies_);
  context.ops.Norm(context, x, head.norm, static_cast<float>(config().rms_norm_eps), x);
  return {head.head, x, head_rows_, rows};
}

}  // namespace outrider
