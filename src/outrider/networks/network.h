// A network: what runs the rows of a step through a target's layers, through its draft modules and
// through their heads. Stateless between calls: what a step leaves behind is in the KV cache.
//
// A family of networks is one parser (checkpoint/family_parsers.h), one weight map and one class
// derived from Network.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "outrider/attention/attention_plan.h"
#include "outrider/batch/batch_layout.h"
#include "outrider/checkpoint/model_config.h"
#include "outrider/kv/cache_form.h"
#include "outrider/ops/kv_cache.h"
#include "outrider/ops/moe.h"
#include "outrider/ops/ops.h"

namespace outrider {

/// The sizes of a layer's attention that the cache depends on.
CacheShape CacheShapeOf(const MlaSpec& attention);

/// What the network keeps in the cache, with its first `num_modules` MTP modules. Layers of the
/// cache whose entries live equally long form a group. `form` is of latent attention.
NetworkCache NetworkCacheOf(const ModelConfig& config, int32_t num_modules, KvCacheForm form);

/// Adds behind the others what a layer keeps, to the groups whose entries live as long, or to new
/// ones.
void AddCacheLayers(const LayerSpec& layer, KvCacheForm form, NetworkCache* cache);

/// The layers of the cache that belong to layer `index` of the network begin with this one. All
/// attention has one, but for KdaSpec, which has none, and CompressedSpec: rows of the window; with
/// a ratio the entries and the
/// rows that they are pooled from; with an indexer its keys and the rows of those.
int32_t FirstCacheLayer(const ModelConfig& config, int64_t index);

/// What a network runs on and how. What the device refers to must outlive it.
struct NetworkOptions {
  Device device;
  DType operand_dtype = DType::kF32;  // kF32 or kBF16
  AttentionPlan attention = {AttentionBackend::kRagged, 1};
};

/// Asks for the output of a layer: the residual stream after target layer `layer` (0 .. layers -
/// 1), not normalised, is written to `out` [rows, hidden]; of several streams their mean.
struct LayerTap {
  int32_t layer = 0;
  Tensor out;
};

/// What a pass of the target gives beside its output.
struct TargetTaps {
  std::span<const LayerTap> layers = {};  // in order of layer
  /// [rows, layers, top_k] of RoutedShapeOf in the device's memory: the ids of each row's experts.
  /// Layers without experts write nothing. On a device that tells them (Ops::chosen_experts).
  ChosenExpertsOfLayers experts = {};
};

/// The experts of a token in the target's layers; top_k is 0 where no layer has any.
RoutedShape RoutedShapeOf(const ModelConfig& config);

/// A pass of one draft module. Its rows' token ids are those that follow each row's position by m +
/// 1.
struct ModulePass {
  int32_t m = 0;
  const StepInputs& entries;  // rows that leave their cache entries only
  const StepInputs& outputs;  // rows that come out; they see the entries
  Tensor previous;  // [rows of entries, then of outputs, width]: what module 0 reads, or of m - 1
  Tensor hidden;    // [rows of outputs, width]: is written; it may be the start of `previous`
};

class BlockDraftModel;

class Network {
 public:
  virtual ~Network() = default;
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  const ModelConfig& config() const { return config_; }
  const Device& device() const { return options_.device; }
  DType operand_dtype() const { return options_.operand_dtype; }
  /// How its steps divide their rows: to be copied, and assigned their layouts.
  const AttentionPlan& attention() const { return options_.attention; }
  int32_t hidden_size() const { return static_cast<int32_t>(config_.hidden_size); }
  /// Numbers of a row that Forward gives, which heads and MTP modules read.
  virtual int32_t output_width() const { return hidden_size(); }
  int32_t vocab_size() const { return static_cast<int32_t>(config_.vocab_size); }
  int32_t num_mtp_modules() const { return num_modules_; }
  /// A row of numbers per token: what the first layer reads.
  virtual const TokenTable& embedding() const = 0;
  /// What it keeps in the cache, in the form that the attention plan says.
  NetworkCache cache_needs() const {
    return NetworkCacheOf(config_, num_modules_, options_.attention.paths().latent_form());
  }

  /// Runs the target over rows. hidden [rows, output_width]: what the target's head and the first
  /// MTP module read, one row behind the other. Fills the taps.
  void Forward(const StepInputs& inputs, KvCache& cache, Tensor hidden, const TargetTaps& taps);
  void Forward(const StepInputs& inputs, KvCache& cache, Tensor hidden,
               std::span<const LayerTap> taps = {}) {
    Forward(inputs, cache, hidden, TargetTaps{.layers = taps});
  }
  /// Runs the rows of a layout, which are counted exactly.
  void Forward(const BatchLayout& layout, KvCache& cache, Tensor hidden,
               std::span<const LayerTap> taps = {});

  /// A pass of MTP module m, as ModulePass says: hidden is what the module's head and the next
  /// module read; module 0 reads what Forward gave. `entries` or `outputs` may have no rows.
  void ForwardMtp(int32_t m, const StepInputs& entries, const StepInputs& outputs, KvCache& cache,
                  Tensor previous, Tensor hidden);
  /// Runs the rows of layouts, the second without rows that leave entries only.
  void ForwardMtp(int32_t m, const BatchLayout& entries, const BatchLayout& outputs, KvCache& cache,
                  Tensor previous, Tensor hidden);
  void ForwardMtp(int32_t m, const BatchLayout& layout, KvCache& cache, Tensor previous,
                  Tensor hidden);

  /// In place of an MTP module's number: the target.
  static constexpr int32_t kTarget = -1;

  /// logits[i] = head(hidden.row(rows[i])) of the first tokens; logits [rows.size(), tokens]. The
  /// head of MTP module `module`, which made `hidden`, or of kTarget.
  void Logits(int32_t module, Tensor hidden, std::span<const int32_t> rows, Tensor logits);

  /// out[i] = what the head of MTP module `module`, or of kTarget, reads of hidden.row(rows[i]);
  /// out [rows.size(), hidden].
  void HeadInput(int32_t module, Tensor hidden, std::span<const int32_t> rows, Tensor out);

  // Sampling on the target's rows, and on those of an MTP module; see StepSampler.

  void Verify(StepSampler& sampler, Tensor hidden, std::span<const int32_t> rows,
              std::span<const VerifyRequest> requests);
  std::optional<Ticket> LaunchVerify(StepSampler& sampler, Tensor hidden,
                                     std::span<const int32_t> rows,
                                     std::span<const VerifyRequest> requests);
  void Draw(StepSampler& sampler, int32_t module, Tensor hidden, std::span<const int32_t> rows,
            std::span<const DrawRequest> requests, const DraftTokens& among,
            std::span<TokenRef> tokens);
  void Score(StepSampler& sampler, Tensor hidden, std::span<const int32_t> rows,
             std::span<const ScoreRequest> requests);

  /// What drafts blocks of tokens with the stages that came with the network; null: it has none.
  /// The network must outlive it.
  virtual std::unique_ptr<BlockDraftModel> MakeBlockDraftModel();

  /// Has as much work space from now on as passes took so far. No step is recorded yet.
  void FitWorkSpace() { arena_->Fit(); }

  /// Seconds spent in the functions above so far, the drawing of tokens excepted.
  double busy_seconds() const { return busy_seconds_; }
  /// Counts passes of the target and of modules.
  ReplayCounts replay_counts() const { return replayer_->counts(); }

 protected:
  Network(ModelConfig config, NetworkOptions options, int32_t num_modules);

  virtual void RunTarget(const Context& context, const StepInputs& inputs, KvCache& cache,
                         Tensor hidden, const TargetTaps& taps) = 0;
  virtual void RunMtp(const Context& context, const ModulePass& pass, KvCache& cache) = 0;
  /// The head of a module or of kTarget, and what it reads in place of `hidden`.
  virtual HeadRows RunBeforeHead(const Context& context, int32_t module, Tensor hidden,
                                 std::span<const int32_t> rows) = 0;

  Context MakeContext() { return {options_.device, *arena_, options_.operand_dtype}; }
  /// Fills those of `taps` that are of this layer, which stand first, and returns the others.
  static std::span<const LayerTap> FillTaps(const Context& context, std::span<const LayerTap> taps,
                                            int32_t layer, Tensor x);

 private:
  /// The inputs of a layout, which read its plan.
  struct LayoutInputs {
    AttentionPlan plan;
    std::unique_ptr<StepInputs> inputs;
  };
  const StepInputs& Assign(LayoutInputs& rows, const BatchLayout& layout);

  /// run(context, head rows) of a sampler, whose drawing does not count as busy.
  template <typename Run>
  void Sample(const StepSampler& sampler, int32_t module, Tensor hidden,
              std::span<const int32_t> rows, Run run);

  ModelConfig config_;
  NetworkOptions options_;
  int32_t num_modules_;
  double busy_seconds_ = 0;
  BatchLayout no_rows_{1};
  LayoutInputs rows_;        // of the layouts that are given,
  LayoutInputs entry_rows_;  // and of those that leave entries only
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Replayer> replayer_;
};

}  // namespace outrider
