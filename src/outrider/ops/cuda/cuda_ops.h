// The operations of a Hopper GPU: each is a few launches of kernels/cuda in one stream. Products
// take bfloat16 rows; sums, norms and the residual stream are float32. Tensors may be of either
// type: rows of another than a kernel reads or writes are converted beside it.
//
// What it cannot compute is refused when an engine starts (hopper_support.h).
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "outrider/kernels/cuda/gqa/gqa_attention.h"
#include "outrider/kernels/cuda/matmul/matmul.h"
#include "outrider/kernels/cuda/moe/expert_router.h"
#include "outrider/ops/block_drafts.h"
#include "outrider/ops/compressed.h"
#include "outrider/ops/cuda/cuda_arena.h"
#include "outrider/ops/cuda/cuda_step_inputs.h"
#include "outrider/ops/cuda/hopper_support.h"
#include "outrider/ops/cuda/idle_clock.h"
#include "outrider/ops/cuda/prompt_plans.h"
#include "outrider/ops/cuda/step_results.h"
#include "outrider/ops/delta.h"
#include "outrider/ops/hyper.h"
#include "outrider/ops/mla.h"
#include "outrider/ops/moe.h"
#include "outrider/ops/ops.h"
#include "outrider/ops/per_head.h"
#include "outrider/ops/sparse.h"

namespace outrider::cuda {

struct HyperRowsParams;  // kernels/cuda/hyper/hyper_rows.h
class RowChunks;         // ops/cuda/row_chunks.h

/// Runs on one device. Contexts of its calls have arenas that it made (MakeArena); one thread at a
/// time, for which the device is the current one (UseOnThisThread). Calls launch work and return;
/// those that give results to the host wait for them. Their context's operand type is bfloat16. Of
/// several ranks contexts have DeviceCommunicators. Throws Error for what CUDA says.
class CudaOps : public Ops,
                public MlaOps,
                public MoeOps,
                public PerHeadOps,
                public SparseOps,
                public CompressedOps,
                public HyperOps,
                public TokenRouterOps,
                public ChosenExpertOps,
                public BlockDraftOps,
                public DeltaOps {
 public:
  /// On device 0. Throws Error as CheckIsHopper (hopper_gpu.h).
  CudaOps() : CudaOps(0, /*head_ranks=*/1, /*sharers=*/1) {}
  /// For one of several ranks. head_ranks: ranks that share the heads of attention. sharers: ranks
  /// that run on the device at a time.
  CudaOps(int device, int32_t head_ranks, int32_t sharers);
  ~CudaOps() override;
  CudaOps(const CudaOps&) = delete;
  CudaOps& operator=(const CudaOps&) = delete;

  int device() const { return device_; }
  cudaStream_t stream() const { return stream_; }
  /// Waits until all that was launched is done.
  void Synchronize() const;
  /// Synchronize at the end of a step's work: nothing is launched until the host has read the
  /// results.
  void WaitForResults() const;

  /// Kept tokens and results of samplers.
  StepResults& results() const { return *results_; }
  /// Begins to copy kept tokens and `bytes` of results to the host.
  Ticket LaunchReading(size_t bytes) const;

  std::string_view name() const override { return "cuda"; }
  void UseOnThisThread() const override;
  const MlaOps* mla() const override { return this; }
  const MoeOps* moe() const override { return this; }
  const PerHeadOps* per_head() const override { return this; }
  const SparseOps* sparse() const override { return this; }
  const CompressedOps* compressed() const override { return this; }
  const HyperOps* hyper() const override { return this; }
  const TokenRouterOps* token_router() const override { return this; }
  const ChosenExpertOps* chosen_experts() const override { return this; }
  const BlockDraftOps* block_drafts() const override { return this; }
  const DeltaOps* delta() const override { return this; }
  DeviceMemoryState memory() const override;
  void PauseIdleClock() const override { idle_->Pause(); }
  double idle_seconds() const override { return idle_->seconds(); }
  /// Work is launched.
  void WorkBegins() const { idle_->WorkBegins(); }

  DType activation_type() const override { return DType::kBF16; }
  int64_t mlp_tile() const override { return kMostRows; }
  Buffer Allocate(size_t bytes) const override;
  void CopyToHost(const std::byte* from, std::span<std::byte> to) const override;
  void CopyFromHost(std::span<const std::byte> from, std::byte* to) const override;
  std::unique_ptr<Arena> MakeArena() const override;
  void PreparePrompts(const MlaShape& shape) const override {
    prompt_plans_->Prepare(shape, shape.query_stride());
  }
  /// Waits for what PreparePrompts has begun.
  void WaitForPromptPlans() const { prompt_plans_->Wait(); }
  std::unique_ptr<WeightLoader> MakeWeightLoader(const WeightSource& source,
                                                 const WeightForm& form) const override;
  std::unique_ptr<StepInputs> MakeStepInputs() const override;
  std::unique_ptr<Replayer> MakeReplayer(const Context& context) const override;
  std::unique_ptr<StepSampler> MakeSampler(const Device& device,
                                           const Verifier& verifier) const override;
  std::unique_ptr<BlockSampler> MakeBlockSampler(const Device& device) const override;

  void KeepTokens(int32_t count) const override;
  void ReadTokens() const override;
  int32_t ReadToken(TokenRef token) const override;
  int32_t ReadVerifiedToken(TokenRef token) const override;

  void Embed(const Context& context, const TokenTable& table, const StepInputs& inputs,
             bool zero_first, Tensor x) const override;
  Rotary MakeRotary(const Context& context, std::span<const float> frequencies, float magnitude,
                    bool interleaved, const StepInputs& inputs) const override;
  void Norm(const Context& context, Tensor x, const float* weight, float eps,
            Tensor y) const override;
  void SetZero(const Context& context, Tensor x) const override;
  void Copy(const Context& context, Tensor from, Tensor to) const override;
  void CopyRows(const Context& context, Tensor from, Tensor to,
                const RowCopies& copies) const override;
  void ShareRows(const Context& context, Tensor x, std::span<const RankRun> runs) const override;
  void TakeOwnRows(const Context& context, const StepInputs& inputs, Tensor from,
                   Tensor own) const override;
  void ShareOwnRows(const Context& context, const StepInputs& inputs, Tensor own,
                    Tensor x) const override;

  void ToHost(const Context& context, Tensor x, std::span<float> to) const override;

  void Multiply(const Context& context, std::span<const Product> products) const override;
  void Head(const Context& context, Tensor x, std::span<const int32_t> rows, const Weight& w,
            Tensor logits) const override;
  void HeadChoice(const Context& context, Tensor x, std::span<const int32_t> rows, const Weight& w,
                  int32_t num_tokens, std::span<int32_t> tokens) const override;

  /// Head, of rows whose numbers are on the device.
  void HeadAt(const Context& context, Tensor x, const int32_t* rows, const Weight& w,
              Tensor logits) const;
  /// HeadAt, for the tokens whose rows of the head this rank has; part [rows, own tokens].
  void HeadPartAt(const Context& context, Tensor x, const int32_t* rows, const Weight& w,
                  Tensor part) const;
  /// Head, of all rows of x in order. It can be recorded.
  void HeadOf(const Context& context, Tensor x, const Weight& w, Tensor logits) const;

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
                Tensor streams) const override;
  void HyperMean(const Context& context, const HyperShape& shape, Tensor streams,
                 Tensor mean) const override;

  void DeltaAttention(const Context& context, const DeltaShape& shape, const StepInputs& inputs,
                      const DeltaArgs& args) const override;
  void NormGate(const Context& context, const NormGateArgs& args) const override;
  void GateHeads(const Context& context, Tensor gates, Tensor x) const override;

 protected:
  /// MlaDecodeParams::relaxed, for measurements of what exactness costs.
  virtual bool relaxed_attention() const { return false; }
  /// Bytes of an indexer's scores that are in memory together, but for those of the fewest rows
  /// that are scored at a time. Rows of a long prompt take several rounds.
  virtual int64_t score_bytes() const { return int64_t{256} << 20; }

 private:
  /// The rows that a head reads, as it reads them; memory of the arena.
  Tensor HeadInput(const Context& context, Tensor x, const int32_t* rows, int64_t count) const;
  /// to[i] = from[rows[i]]; rows [to.rows] on the device.
  void CopyRowsAt(Tensor from, const int32_t* rows, Tensor to) const;
  void HeadPart(Tensor x, const Weight& w, Tensor part) const;
  /// A product with a weight that ranks share: brings its input together, or its columns.
  void MultiplyShared(const Context& context, const Product& product) const;
  /// Does so with rows in chunks, which travel while others are multiplied.
  void MultiplyInChunks(const Context& context, const Product& product,
                        const RowChunks& chunks) const;
  void MultiplyOne(const Context& context, const Product& product, const PackedWeight& w,
                   Tensor y) const;
  /// A product for each group, where one does not fit (FitsGroups): the same bits.
  void MultiplyGroups(const Context& context, const Product& product, const PackedWeight& w) const;

  /// Memory of the arena's routing for `rows` rows, and what the router is asked for, but for
  /// logits and bias.
  ExpertRouterParams PrepareRouting(const Context& context, const RouterSpec& spec,
                                    const StepInputs& inputs, int64_t rows,
                                    const ExpertWeights& w) const;
  /// What is added to streams: rows, or outputs of experts as they are. Memory of the arena.
  void SetAdd(const Context& context, const HyperAddArgs& args, HyperRowsParams& params) const;
  /// Attention of some of a step's rows.
  void AttendPerHead(const Context& context, const PerHeadShape& shape, GqaBody body,
                     const DecodeRequests& requests, uint64_t serial,
                     const AttentionArgs& args) const;
  /// `batch`: as PromptAttentionParams.
  void AttendToPrompts(const Context& context, const MlaShape& shape, const KvUpWeight& w,
                       const PromptGroup& prompts, const AttentionArgs& args, uint64_t batch) const;

  int device_;
  int32_t head_ranks_;
  std::unique_ptr<CUstream_st, cudaError_t (*)(cudaStream_t)> own_stream_;
  cudaStream_t stream_;  // that one
  std::unique_ptr<IdleClock> idle_;
  std::unique_ptr<StepResults> results_;
  std::unique_ptr<PromptPlans> prompt_plans_;
};

}  // namespace outrider::cuda
