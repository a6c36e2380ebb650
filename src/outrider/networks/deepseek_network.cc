#include "outrider/networks/deepseek_network.h"

#include <algorithm>
#include <array>
#include <utility>

namespace outrider {

DeepSeekNetwork::DeepSeekNetwork(ModelConfig config, DeepSeekWeights weights,
                                 const NetworkOptions& options)
    : Network(std::move(config), options, static_cast<int32_t>(weights.mtp.size())),
      weights_(std::move(weights)) {
  for (DecoderLayer& layer : weights_.layers) layer.rotary_kind = rotary_.Add(layer.spec.rotary);
  for (MtpWeights& w : weights_.mtp) w.layer.rotary_kind = rotary_.Add(w.layer.spec.rotary);
}

void DeepSeekNetwork::RunTarget(const BatchLayout& layout, KvCache& cache, MatrixView<float> hidden,
                                std::span<const LayerTap> taps) {
  const Compute compute = MakeCompute();
  const int64_t rows = layout.num_rows();
  const LayerStep step = {layout, Plan(layout), rotary_.Rows(layout.positions(), compute.scratch)};
  const MatrixView<float> x = compute.scratch.Matrix(rows, config().hidden_size);
  for (int64_t r = 0; r < rows; ++r) {
    weights_.embedding.Read(layout.token_ids()[static_cast<size_t>(r)], x.row(r));
  }
  for (int32_t i = 0; i < static_cast<int32_t>(weights_.layers.size()); ++i) {
    DecoderLayerForward(compute, weights_.layers[static_cast<size_t>(i)], step, cache.layer(i), x);
    taps = FillTaps(taps, i, x);
  }
  compute.kernels.rms_norm(compute.pool, x, weights_.final_norm,
                           static_cast<float>(config().rms_norm_eps), hidden.Rows(0, rows));
}

void DeepSeekNetwork::ReadMtpEmbeddings(const BatchLayout& layout,
                                        MatrixView<float> embedding) const {
  for (int64_t r = 0; r < layout.num_rows(); ++r) {
    weights_.embedding.Read(layout.token_ids()[static_cast<size_t>(r)], embedding.row(r));
    if (config().mtp_zero_first_embedding && layout.positions()[static_cast<size_t>(r)] == 0) {
      std::fill_n(embedding.row(r), embedding.cols, 0.0F);
    }
  }
}

void DeepSeekNetwork::RunMtp(const MtpPass& pass, KvCache& cache) {
  const Compute compute = MakeCompute();
  const MtpWeights& w = weights_.mtp[static_cast<size_t>(pass.m)];
  const int64_t num_entries = pass.entries.num_rows();
  const int64_t num_outputs = pass.outputs.num_rows();
  const int64_t rows = num_entries + num_outputs;
  const int64_t width = config().hidden_size;
  const auto eps = static_cast<float>(config().rms_norm_eps);
  const LayerCache layer_cache =
      cache.layer(static_cast<int32_t>(config().num_hidden_layers()) + pass.m);

  const MatrixView<float> pair = compute.scratch.Matrix(rows, 2 * width);
  const MatrixView<float> embedding = pair.Columns(0, width);
  ReadMtpEmbeddings(pass.entries, embedding.Rows(0, num_entries));
  ReadMtpEmbeddings(pass.outputs, embedding.Rows(num_entries, num_outputs));
  compute.kernels.rms_norm(compute.pool, embedding, w.embedding_norm, eps, embedding);
  compute.kernels.rms_norm(compute.pool, pass.previous.Rows(0, rows), w.hidden_norm, eps,
                           pair.Columns(width, width));
  const MatrixView<float> x = compute.scratch.Matrix(rows, width);
  compute.kernels.matmul(compute.pool, std::array{MatMulJob{.x = pair, .w = &w.projection, .y = x}},
                         compute.operand_dtype);
  if (num_entries > 0) {
    const LayerStep step = {pass.entries, plan(),
                            rotary_.Rows(pass.entries.positions(), compute.scratch)};
    WriteLayerEntries(compute, w.layer, step, layer_cache, x.Rows(0, num_entries));
  }
  if (num_outputs == 0) return;
  const MatrixView<float> out = x.Rows(num_entries, num_outputs);
  const LayerStep step = {pass.outputs, Plan(pass.outputs),
                          rotary_.Rows(pass.outputs.positions(), compute.scratch)};
  DecoderLayerForward(compute, w.layer, step, layer_cache, out);
  compute.kernels.rms_norm(compute.pool, out, w.output_norm, eps, pass.hidden.Rows(0, num_outputs));
}

void DeepSeekNetwork::RunHead(int32_t /*module*/, MatrixView<const float> hidden,
                              std::span<const int32_t> rows, MatrixView<float> logits) {
  const Compute compute = MakeCompute();
  const PackedMatrix head = weights_.head.FirstRows(logits.cols);
  compute.kernels.matmul(
      compute.pool,
      std::array{MatMulJob{.x = hidden, .x_rows = rows.data(), .w = &head, .y = logits}},
      compute.operand_dtype);
}

void DeepSeekNetwork::RunHeadArgMax(int32_t /*module*/, MatrixView<const float> hidden,
                                    std::span<const int32_t> rows, int32_t num_tokens,
                                    std::span<int32_t> tokens) {
  const Compute compute = MakeCompute();
  const PackedMatrix head = weights_.head.FirstRows(num_tokens);
  compute.kernels.matmul_arg_max(
      compute.pool, {.x = hidden, .x_rows = rows.data(), .w = &head, .columns = tokens},
      compute.operand_dtype);
}

}  // namespace outrider
