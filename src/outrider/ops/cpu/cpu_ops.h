// The CPU's operations: drivers over a kernel table, which computes every sum.
#pragma once

#include "outrider/kernels/kernel_table.h"
#include "outrider/ops/block_drafts.h"
#include "outrider/ops/compressed.h"
#include "outrider/ops/cpu/compute.h"
#include "outrider/ops/delta.h"
#include "outrider/ops/hyper.h"
#include "outrider/ops/mla.h"
#include "outrider/ops/moe.h"
#include "outrider/ops/ops.h"
#include "outrider/ops/per_head.h"
#include "outrider/ops/sparse.h"

namespace outrider::cpu {

/// Contexts of its calls have a thread pool, and tensors are float32.
class CpuOps : public Ops,
               public MlaOps,
               public PerHeadMlaOps,
               public PerHeadOps,
               public SparseOps,
               public CompressedOps,
               public HyperOps,
               public MoeOps,
               public TokenRouterOps,
               public BlockDraftOps,
               public ChosenExpertOps,
               public DeltaOps {
 public:
  /// The table must outlive the object.
  explicit CpuOps(const KernelTable& kernels) : kernels_(kernels) {}

  const KernelTable& kernels() const { return kernels_; }
  std::string_view name() const override { return kernels_.name; }
  const MlaOps* mla() const override { return this; }
  const PerHeadMlaOps* mla_per_head() const override { return this; }
  const PerHeadOps* per_head() const override { return this; }
  const SparseOps* sparse() const override { return this; }
  const CompressedOps* compressed() const override { return this; }
  const HyperOps* hyper() const override { return this; }
  const MoeOps* moe() const override { return this; }
  const TokenRouterOps* token_router() const override { return this; }
  const ChosenExpertOps* chosen_experts() const override { return this; }
  const BlockDraftOps* block_drafts() const override { return this; }
  const DeltaOps* delta() const override { return this; }
  DType activation_type() const override { return DType::kF32; }
  int64_t mlp_tile() const override { return 512; }
  Buffer Allocate(size_t bytes) const override { return Buffer(bytes); }
  std::unique_ptr<WeightLoader> MakeWeightLoader(const WeightSource& source,
                                                 const WeightForm& form) const override;
  std::unique_ptr<StepInputs> MakeStepInputs() const override;
  std::unique_ptr<StepSampler> MakeSampler(const Device& device,
                                           const Verifier& verifier) const override;

  void Embed(const Context& context, const TokenTable& table, const StepInputs& inputs,
             bool zero_first, Tensor x) const override;
  std::unique_ptr<BlockSampler> MakeBlockSampler(const Device& device) const override;
  /// x[i] = the table's row of tokens[i].
  static void EmbedTokens(const TokenTable& table, std::span<const TokenRef> tokens, Tensor x);
  Rotary MakeRotary(const Context& context, std::span<const float> frequencies, float magnitude,
                    bool interleaved, const StepInputs& inputs) const override;
  void Norm(const Context& context, Tensor x, const float* weight, float eps,
            Tensor y) const override;
  void SetZero(const Context& context, Tensor x) const override;
  void Copy(const Context& context, Tensor from, Tensor to) const override;
  void CopyRows(const Context& context, Tensor from, Tensor to,
                const RowCopies& copies) const override;

  void ShareRows(const Context& context, Tensor x, std::span<const RankRun> runs) const override;
  void ToHost(const Context& context, Tensor x, std::span<float> to) const override;

  void Multiply(const Context& context, std::span<const Product> products) const override;
  void Head(const Context& context, Tensor x, std::span<const int32_t> rows, const Weight& w,
            Tensor logits) const override;
  void HeadChoice(const Context& context, Tensor x, std::span<const int32_t> rows, const Weight& w,
                  int32_t num_tokens, std::span<int32_t> tokens) const override;

  const Routing& Route(const Context& context, const RouterSpec& spec, const StepInputs& inputs,
                       int32_t first_row, const ExpertWeights& w, Tensor logits,
                       const float* bias) const override;
  const Routing& RouteByToken(const Context& context, const RouterSpec& spec,
                              const StepInputs& inputs, int32_t first_row, const ExpertWeights& w,
                              Tensor logits, const int32_t* table) const override;
  void ReadChosen(const Routing& routing, ChosenExperts chosen) const override;
  ExpertRows ExpertGateUp(const Context& context, const ExpertWeights& w,
                          const ExpertLimits& limits, const Routing& routing,
                          Tensor x) const override;
  ExpertRows ExpertDown(const Context& context, const ExpertWeights& w, const Routing& routing,
                        const ExpertRows& inner) const override;
  void CombineExperts(const Context& context, const ExpertWeights& w, const Routing& routing,
                      const ExpertRows& outputs, Tensor x, const NormOut& norm) const override;

  void Rotate(const Context& context, Tensor x, int32_t heads, int32_t offset,
              const Rotary& rotary) const override;
  void WriteLatentEntries(const Context& context, const MlaShape& shape, const StepInputs& inputs,
                          const EntryArgs& args) const override;
  void WritePerHeadEntries(const Context& context, const MlaShape& shape, const KvUpWeight& w,
                           const StepInputs& inputs, const EntryArgs& args) const override;
  void Absorb(const Context& context, const MlaShape& shape, const KvUpWeight& w,
              const Rotary& rotary, Tensor q, Tensor absorbed) const override;
  void Unabsorb(const Context& context, const MlaShape& shape, const KvUpWeight& w, Tensor latent,
                Tensor out) const override;
  void DecodeAttention(const Context& context, const MlaShape& shape, const StepInputs& inputs,
                       const AttentionArgs& args) const override;
  void PromptAttention(const Context& context, const MlaShape& shape, const KvUpWeight& w,
                       const StepInputs& inputs, const AttentionArgs& args) const override;
  void PerHeadAttention(const Context& context, const PerHeadShape& shape, const StepInputs& inputs,
                        const AttentionArgs& args) const override;
  /// Norm of every one of the `heads` heads, whose columns they share evenly, in place; weight
  /// [cols / heads], null: all 1.
  void NormHeads(const Context& context, Tensor x, int32_t heads, const float* weight,
                 float eps) const;
  /// Writes one cache entry per row as it is.
  void WriteEntries(const Context& context, const StepInputs& inputs, Tensor entries,
                    LayerCache cache) const;
  void WriteHeadEntries(const Context& context, const PerHeadShape& shape, const StepInputs& inputs,
                        const HeadEntryArgs& args) const override;

  void WriteIndexKeys(const Context& context, const StepInputs& inputs,
                      const IndexKeyArgs& args) const override;
  SelectedEntries SelectEntries(const Context& context, const StepInputs& inputs,
                                const SelectEntriesArgs& args) const override;
  void SelectedAttention(const Context& context, const StepInputs& inputs,
                         const SelectedAttentionArgs& args) const override;

  void FinishQueries(const Context& context, const QueryArgs& args) const override;
  void WriteWindowRows(const Context& context, const StepInputs& inputs,
                       const WindowRowArgs& args) const override;
  void WriteTokenRows(const Context& context, const StepInputs& inputs, Tensor x,
                      std::span<const TokenRowArgs> compressors,
                      const Product* beside) const override;
  void Compress(const Context& context, const StepInputs& inputs,
                std::span<const CompressArgs> compressors) const override;
  void CompressedAttention(const Context& context, const StepInputs& inputs,
                           const CompressedAttentionArgs& args) const override;
  void HyperMix(const Context& context, const HyperShape& shape,
                const HyperMixArgs& args) const override;
  void HyperAdd(const Context& context, const HyperShape& shape, const HyperAddArgs& args,
                Tensor stream_rows) const override;
  void HyperMean(const Context& context, const HyperShape& shape, Tensor streams,
                 Tensor mean) const override;
  void DeltaAttention(const Context& context, const DeltaShape& shape, const StepInputs& inputs,
                      const DeltaArgs& args) const override;
  void NormGate(const Context& context, const NormGateArgs& args) const override;
  void GateHeads(const Context& context, Tensor gates, Tensor x) const override;

 protected:
  /// RouteByToken, of rows with these tokens.
  static const Routing& RouteTokens(const Context& context, const RouterSpec& spec,
                                    std::span<const TokenRef> tokens, Tensor logits,
                                    const int32_t* table);

 private:
  void NormQueries(const Context& context, const MlaShape& shape, const EntryArgs& args) const;
  void WritePooled(const Context& context, const StepInputs& inputs,
                   const CompressArgs& args) const;

  Compute ComputeOf(const Context& context) const {
    return {kernels_, *context.pool, context.arena, context.operand_dtype};
  }

  const KernelTable& kernels_;
};

/// Over GetKernels(isa).
const CpuOps& GetCpuOps(Isa isa);

}  // namespace outrider::cpu
