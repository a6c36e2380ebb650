#include "outrider/model/mla_model.h"

#include <algorithm>
#include <array>
#include <utility>

#include "outrider/base/stopwatch.h"
#include "outrider/model/decoder_layer.h"
#include "outrider/model/rotary.h"

namespace outrider {

namespace {

MlaShape ShapeOf(const ModelConfig& c) {
  MlaShape s;
  s.hidden = static_cast<int32_t>(c.hidden_size);
  s.heads = static_cast<int32_t>(c.num_attention_heads);
  s.q_lora = static_cast<int32_t>(c.q_lora_rank);
  s.latent = static_cast<int32_t>(c.kv_lora_rank);
  s.nope = static_cast<int32_t>(c.qk_nope_head_dim);
  s.rope = static_cast<int32_t>(c.qk_rope_head_dim);
  s.value = static_cast<int32_t>(c.v_head_dim);
  s.softmax_scale = static_cast<float>(c.SoftmaxScale());
  s.norm_eps = static_cast<float>(c.latent_norm_eps);
  s.rope_interleaved = c.rope_interleaved;
  return s;
}

}  // namespace

CacheShape CacheShapeOf(const ModelConfig& c) {
  return {.heads = c.num_attention_heads,
          .latent = c.kv_lora_rank,
          .nope = c.qk_nope_head_dim,
          .rope = c.qk_rope_head_dim,
          .value = c.v_head_dim};
}

MlaModel::MlaModel(ModelConfig config, ModelWeights weights, const KernelTable& kernels,
                   ThreadPool& pool, DType operand_dtype, AttentionPlan attention)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      kernels_(kernels),
      pool_(pool),
      operand_dtype_(operand_dtype),
      shape_(ShapeOf(config_)),
      rotary_frequencies_(RotaryFrequencies(config_)),
      attention_(std::move(attention)) {}

int32_t MlaModel::num_cache_layers() const {
  return static_cast<int32_t>(config_.num_hidden_layers) + num_mtp_modules();
}

int32_t MlaModel::cache_width() const {
  return static_cast<int32_t>(CacheWidth(attention_.cache_form(), CacheShapeOf(config_)));
}

RotaryRows MlaModel::Rotary(const BatchLayout& layout) {
  return MakeRotaryRows(rotary_frequencies_, static_cast<float>(config_.RopeMagnitude()),
                        shape_.rope_interleaved, layout.positions(), scratch_);
}

void MlaModel::Forward(const BatchLayout& layout, KvCache& cache, MatrixView<float> hidden) {
  Forward(layout, cache, hidden, [](int64_t, MatrixView<const float>) {});
}

void MlaModel::Forward(const BatchLayout& layout, KvCache& cache, MatrixView<float> hidden,
                       LayerObserver observer) {
  const Stopwatch watch(busy_seconds_);
  const Scratch::Frame frame(scratch_);
  const Compute compute = MakeCompute();
  const int64_t rows = layout.num_rows();
  const RotaryRows rotary = Rotary(layout);
  attention_.Assign(layout);
  const MatrixView<float> x = scratch_.Matrix(rows, config_.hidden_size);
  for (int64_t r = 0; r < rows; ++r) {
    weights_.embedding.Read(layout.token_ids()[static_cast<size_t>(r)], x.row(r));
  }
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    DecoderLayerForward(compute, config_, shape_, weights_.layers[i], layout, attention_, rotary,
                        cache.layer(static_cast<int32_t>(i)), x);
    observer(static_cast<int64_t>(i), x);
  }
  kernels_.rms_norm(pool_, x, weights_.final_norm, static_cast<float>(config_.rms_norm_eps),
                    hidden.Rows(0, rows));
}

void MlaModel::ReadMtpEmbeddings(const BatchLayout& layout, MatrixView<float> embedding) const {
  for (int64_t r = 0; r < layout.num_rows(); ++r) {
    weights_.embedding.Read(layout.token_ids()[static_cast<size_t>(r)], embedding.row(r));
    if (config_.mtp_zero_first_embedding && layout.positions()[static_cast<size_t>(r)] == 0) {
      std::fill_n(embedding.row(r), embedding.cols, 0.0F);
    }
  }
}

void MlaModel::ForwardMtp(int32_t m, const BatchLayout& layout, KvCache& cache,
                          MatrixView<const float> previous, MatrixView<float> hidden) {
  ForwardMtp(m, no_rows_, layout, cache, previous, hidden);
}

void MlaModel::ForwardMtp(int32_t m, const BatchLayout& entries, const BatchLayout& outputs,
                          KvCache& cache, MatrixView<const float> previous,
                          MatrixView<float> hidden) {
  const Stopwatch watch(busy_seconds_);
  const Scratch::Frame frame(scratch_);
  const Compute compute = MakeCompute();
  const MtpWeights& w = weights_.mtp[static_cast<size_t>(m)];
  const int64_t num_entries = entries.num_rows();
  const int64_t num_outputs = outputs.num_rows();
  const int64_t rows = num_entries + num_outputs;
  const int64_t width = config_.hidden_size;
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  const LayerCache layer_cache = cache.layer(static_cast<int32_t>(config_.num_hidden_layers) + m);

  const MatrixView<float> pair = scratch_.Matrix(rows, 2 * width);
  const MatrixView<float> embedding = pair.Columns(0, width);
  ReadMtpEmbeddings(entries, embedding.Rows(0, num_entries));
  ReadMtpEmbeddings(outputs, embedding.Rows(num_entries, num_outputs));
  kernels_.rms_norm(pool_, embedding, w.embedding_norm, eps, embedding);
  kernels_.rms_norm(pool_, previous.Rows(0, rows), w.hidden_norm, eps, pair.Columns(width, width));
  const MatrixView<float> x = scratch_.Matrix(rows, width);
  kernels_.matmul(pool_, std::array{MatMulJob{.x = pair, .w = &w.projection, .y = x}},
                  operand_dtype_);
  if (num_entries > 0) {
    WriteLayerEntries(compute, config_, shape_, w.layer, entries, attention_.cache_form(),
                      Rotary(entries), layer_cache, x.Rows(0, num_entries));
  }
  if (num_outputs == 0) return;
  attention_.Assign(outputs);
  const MatrixView<float> out = x.Rows(num_entries, num_outputs);
  DecoderLayerForward(compute, config_, shape_, w.layer, outputs, attention_, Rotary(outputs),
                      layer_cache, out);
  kernels_.rms_norm(pool_, out, w.output_norm, eps, hidden.Rows(0, num_outputs));
}

void MlaModel::Logits(MatrixView<const float> hidden, std::span<const int32_t> rows,
                      MatrixView<float> logits) {
  const Stopwatch watch(busy_seconds_);
  OUTRIDER_CHECK(logits.rows == static_cast<int64_t>(rows.size()));
  const PackedMatrix head = weights_.head.FirstRows(logits.cols);
  kernels_.matmul(
      pool_, std::array{MatMulJob{.x = hidden, .x_rows = rows.data(), .w = &head, .y = logits}},
      operand_dtype_);
}

void MlaModel::ArgMaxTokens(MatrixView<const float> hidden, std::span<const int32_t> rows,
                            int32_t num_tokens, std::span<int32_t> tokens) {
  const Stopwatch watch(busy_seconds_);
  OUTRIDER_CHECK(tokens.size() == rows.size());
  const PackedMatrix head = weights_.head.FirstRows(num_tokens);
  kernels_.matmul_arg_max(
      pool_, {.x = hidden, .x_rows = rows.data(), .w = &head, .columns = tokens}, operand_dtype_);
}

}  // namespace outrider
