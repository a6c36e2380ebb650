#include "outrider/networks/decoder_network.h"

#include <array>

namespace outrider {

void DecoderNetwork::RunLayers(const Context& context, const TokenTable& embedding,
                               std::span<const DecoderLayer> layers, const StepInputs& inputs,
                               KvCache& cache, std::span<const LayerTap> taps, Tensor x) {
  const LayerStep step = {inputs, rotary_.Rows(context, inputs)};
  context.ops.Embed(context, embedding, inputs, false, x);
  for (int32_t i = 0; i < static_cast<int32_t>(layers.size()); ++i) {
    DecoderLayerForward(context, layers[static_cast<size_t>(i)], step, cache.layer(i), x);
    taps = FillTaps(context, taps, i, x);
  }
}

Tensor DecoderNetwork::RunModule(const Context& context, const TokenTable& embedding_table,
                                 const MtpModule& module, const ModulePass& pass, KvCache& cache) {
  const Ops& ops = context.ops;
  const int64_t num_entries = pass.entries.num_rows();
  const int64_t num_outputs = pass.outputs.num_rows();
  const int64_t rows = num_entries + num_outputs;
  const int64_t width = config().hidden_size;
  const auto eps = static_cast<float>(config().rms_norm_eps);
  const LayerCache layer_cache =
      cache.layer(static_cast<int32_t>(config().num_hidden_layers()) + pass.m);

  const Tensor pair = context.Rows(rows, 2 * width);
  const Tensor embedding = pair.Columns(0, width);
  const bool zero_first = config().mtp_zero_first_embedding;
  ops.Embed(context, embedding_table, pass.entries, zero_first, embedding.Rows(0, num_entries));
  ops.Embed(context, embedding_table, pass.outputs, zero_first,
            embedding.Rows(num_entries, num_outputs));
  ops.Norm(context, embedding, module.embedding_norm, eps, embedding);
  ops.Norm(context, pass.previous.Rows(0, rows), module.hidden_norm, eps,
           pair.Columns(width, width));
  const Tensor x = context.Rows(rows, width);
  ops.Multiply(context, std::array{Product{.x = pair, .w = &module.projection, .y = x}});
  if (num_entries > 0) {
    const LayerStep step = {pass.entries, rotary_.Rows(context, pass.entries)};
    WriteLayerEntries(context, module.layer, step, layer_cache, x.Rows(0, num_entries));
  }
  const Tensor out = x.Rows(num_entries, num_outputs);
  if (num_outputs > 0) {
    const LayerStep step = {pass.outputs, rotary_.Rows(context, pass.outputs)};
    DecoderLayerForward(context, module.layer, step, layer_cache, out);
  }
  return out;
}

}  // namespace outrider
