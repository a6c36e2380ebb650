// An EAGLE-3 drafter (arXiv:2503.01840) from a checkpoint of its own, with latent attention or, as
// most are published (LlamaForCausalLMEagle3), with grouped-query attention.
//
// h = fc(the outputs of some of the target's layers, side by side), each normalised before it in
// version 3.1. A row at position p reads h and the embedding of the token after p, and is one
// layer:
//
//   y = [norm(embedding) ; norm(h)]     x = h + attention(y)     x += mlp(norm(x))
//
// Its head reads norm(x). The next pass reads x in place of h, or norm(x) in version 3.1.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "outrider/layers/rotary.h"
#include "outrider/networks/draft_model.h"
#include "outrider/networks/eagle3_weights.h"
#include "outrider/networks/network_loader.h"

namespace outrider {

/// Sizes in memory of a drafter's weights: modules and no target. Throws the same errors as
/// LoadEagle3.
NetworkWeightSizes MeasureEagle3(const Ops& ops, const ModelConfig& config,
                                 const WeightSource& source, const WeightForm& form);

/// Bytes of the files that LoadEagle3 reads. Throws the same errors.
int64_t Eagle3StoredBytes(const Ops& ops, const ModelConfig& config, const WeightSource& source,
                          const WeightForm& form);

/// Reads and packs a drafter's weights. Throws Error that lists every tensor that is missing or
/// wrong.
Eagle3Weights LoadEagle3(const ModelConfig& config, const WeightSource& source,
                         const WeightForm& form, const Device& device,
                         const WeightLoader::Progress& progress);

class Eagle3DraftModel : public DraftModel {
 public:
  /// config: of the drafter; taps: Eagle3Taps. Its cache layer follows those of `target`, which
  /// must outlive it.
  Eagle3DraftModel(const ModelConfig& config, std::vector<int32_t> taps, Eagle3Weights weights,
                   const Network& target);

  /// The target's cache with the drafter's layer behind it.
  static NetworkCache CacheNeeds(const ModelConfig& target, const ModelConfig& config,
                                 KvCacheForm form);

  std::span<const int32_t> taps() const override { return taps_; }
  int32_t width() const override { return static_cast<int32_t>(hidden_); }
  int32_t vocab_size() const override { return vocab_; }
  int32_t num_modules() const override { return 1; }
  int32_t first_cache_layer() const override { return first_cache_layer_; }
  Tensor ReadTarget(Tensor target) override;
  void Forward(const ModulePass& pass, KvCache& cache) override;
  void Draw(const DraftDraws& draws, std::span<TokenRef> tokens) override;
  double busy_seconds() const override { return busy_seconds_; }
  ReplayCounts replay_counts() const override { return replayer_->counts(); }

  /// logits [rows.size(), draft vocabulary] of hidden.row(rows[i]), which Forward gave.
  void Logits(Tensor hidden, std::span<const int32_t> rows, Tensor logits);

 private:
  void Run(const Context& context, const ModulePass& pass, KvCache& cache);
  /// What the head reads, in the arena.
  HeadRows BeforeHead(const Context& context, Tensor hidden, std::span<const int32_t> rows);

  Eagle3Spec spec_;
  std::vector<int32_t> taps_;
  Eagle3Weights weights_;
  TokenTable embedding_;
  int64_t hidden_;
  int32_t vocab_;  // of the target
  int32_t first_cache_layer_;
  DType operand_dtype_;
  RotaryKinds rotary_;
  std::unique_ptr<Replayer> replayer_;
  std::unique_ptr<StepSampler> sampler_;
  double busy_seconds_ = 0;
  std::unique_ptr<RowMemory> read_;  // the rows that ReadTarget gave
  std::vector<int32_t> head_rows_;
  RowCopies copies_;
};

}  // namespace outrider
