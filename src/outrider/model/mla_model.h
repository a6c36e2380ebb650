// A DeepSeek-style network (V2, V3, R1, Kimi-K2, GLM-4.7-Flash): the target, its MTP modules, its
// head. Stateless between calls: what a step leaves behind is in the KV cache.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "outrider/attention/attention_plan.h"
#include "outrider/batch/batch_layout.h"
#include "outrider/kernels/compute.h"
#include "outrider/kv/cache_form.h"
#include "outrider/kv/kv_cache.h"
#include "outrider/model/model_weights.h"

namespace outrider {

/// Called after each layer with (layer, residual stream [rows, hidden]); for tests.
using LayerObserver = FunctionRef<void(int64_t layer, MatrixView<const float> x)>;

/// What the cache of this network depends on.
CacheShape CacheShapeOf(const ModelConfig& config);

class MlaModel {
 public:
  /// `kernels` and `pool` must outlive the model. operand_dtype: kF32 or kBF16. `attention` is
  /// remade for the layout of every call.
  MlaModel(ModelConfig config, ModelWeights weights, const KernelTable& kernels, ThreadPool& pool,
           DType operand_dtype, AttentionPlan attention = {AttentionBackend::kRagged, 1});

  const ModelConfig& config() const { return config_; }
  const KernelTable& kernels() const { return kernels_; }
  ThreadPool& pool() const { return pool_; }
  int32_t hidden_size() const { return static_cast<int32_t>(config_.hidden_size); }
  int32_t vocab_size() const { return static_cast<int32_t>(config_.vocab_size); }
  int32_t num_mtp_modules() const { return static_cast<int32_t>(weights_.mtp.size()); }
  /// Layers of the cache that the model writes: the target's, then one per MTP module.
  int32_t num_cache_layers() const;
  /// Numbers per token and layer of the cache, in the form that the attention plan says.
  int32_t cache_width() const;

  /// Runs the target over layout's rows. hidden [rows, hidden]: the outputs after the final norm.
  void Forward(const BatchLayout& layout, KvCache& cache, MatrixView<float> hidden);
  void Forward(const BatchLayout& layout, KvCache& cache, MatrixView<float> hidden,
               LayerObserver observer);

  /// Runs MTP module m over layout's rows, whose token ids are those that follow each row's
  /// position by m + 1: x = eh_proj([enorm(embedding) ; hnorm(previous)]), one layer,
  /// shared_head.norm. previous [rows, hidden]: the target's Forward output (m = 0), or module m -
  /// 1's. hidden may be previous.
  void ForwardMtp(int32_t m, const BatchLayout& layout, KvCache& cache,
                  MatrixView<const float> previous, MatrixView<float> hidden);

  /// The same where some rows' outputs are read by nobody: the rows of `entries` leave their cache
  /// entries only, those of `outputs`, which see them, come out in hidden [outputs' rows, hidden].
  /// previous: the rows of `entries`, then those of `outputs`. Either may have no rows.
  void ForwardMtp(int32_t m, const BatchLayout& entries, const BatchLayout& outputs, KvCache& cache,
                  MatrixView<const float> previous, MatrixView<float> hidden);

  /// logits[i] = head(hidden.row(rows[i])) of the first tokens; logits [rows.size(), tokens].
  void Logits(MatrixView<const float> hidden, std::span<const int32_t> rows,
              MatrixView<float> logits);

  /// The most likely of the first `num_tokens` tokens for each given row, as matmul_arg_max finds
  /// it: tokens [rows.size()].
  void ArgMaxTokens(MatrixView<const float> hidden, std::span<const int32_t> rows,
                    int32_t num_tokens, std::span<int32_t> tokens);

  /// Seconds spent in Forward, ForwardMtp, Logits and ArgMaxTokens so far.
  double busy_seconds() const { return busy_seconds_; }

  const ModelWeights& weights() const { return weights_; }

 private:
  Compute MakeCompute() { return {kernels_, pool_, scratch_, operand_dtype_}; }
  RotaryRows Rotary(const BatchLayout& layout);
  void ReadMtpEmbeddings(const BatchLayout& layout, MatrixView<float> embedding) const;

  double busy_seconds_ = 0;

  ModelConfig config_;
  ModelWeights weights_;
  const KernelTable& kernels_;
  ThreadPool& pool_;
  DType operand_dtype_;
  MlaShape shape_;
  std::vector<float> rotary_frequencies_;
  AttentionPlan attention_;
  BatchLayout no_rows_{1};
  Scratch scratch_;
};

}  // namespace outrider
