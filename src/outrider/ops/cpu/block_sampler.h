// The CPU's BlockSampler: a step's rows are its draws, tokens are drawn from logits in memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "outrider/ops/block_drafts.h"
#include "outrider/sampling/sampler.h"

namespace outrider::cpu {

/// tokens[i] = a draft from row i of logits, on the pool's threads. Of several ranks the first one
/// draws for all.
void DrawDrafts(const Context& context, std::span<Sampler> samplers, MatrixView<const float> logits,
                std::span<const DrawRequest> requests, std::span<TokenRef> tokens);

class CpuBlockSampler : public BlockSampler {
 public:
  explicit CpuBlockSampler(int num_threads) : samplers_(static_cast<size_t>(num_threads)) {}

  void Assign(const BlockDraws& draws) override;
  int64_t num_rows() const override { return static_cast<int64_t>(draws_.rows.size()); }
  RowRange rows_of(size_t step) const override { return steps_.at(step); }
  bool launches_only() const override { return false; }
  void AddTo(RunKey& /*key*/) const override {}
  void ReadRows(const Context& context, Tensor hidden, Tensor x) const override;
  void EmbedBefore(const Context& context, const TokenTable& table, size_t step,
                   Tensor x) const override;
  void Draw(const Context& context, size_t step, Tensor logits) override;
  void TakeTokens(std::span<TokenRef> tokens) override;

 private:
  BlockDraws draws_;
  std::vector<Sampler> samplers_;  // one per thread
  std::vector<RowRange> steps_;
  std::vector<TokenRef> tokens_;  // by draw
};

}  // namespace outrider::cpu
